package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const growthInterval = time.Second

// growForever makes volumes as large as their claims ask for. It is what the resizer beside a
// storage driver does: the file system first, then the volume's capacity, then the claim's status.
func growForever(ctx context.Context, client kubernetes.Interface, p volumes) {
	for {
		// From the API server's cache: what is a moment old is seen at the next look.
		claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			klog.ErrorS(err, "Listing claims")
		} else {
			for i := range claims.Items {
				if err := grow(ctx, client, p, &claims.Items[i]); err != nil {
					klog.ErrorS(err, "Growing a volume", "claim", klog.KObj(&claims.Items[i]))
				}
			}
		}
		time.Sleep(growthInterval)
	}
}

func grow(ctx context.Context, client kubernetes.Interface, p volumes, claim *v1.PersistentVolumeClaim) error {
	wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
	present := claim.Status.Capacity[v1.ResourceStorage]
	if claim.Status.Phase != v1.ClaimBound || wanted.Cmp(present) <= 0 {
		return nil
	}
	pv, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pv.Annotations["pv.kubernetes.io/provisioned-by"] != provisionerName {
		return nil
	}
	if err := p.run(ctx, "grow", nodeOf(pv), pv.Name, strconv.FormatInt(wanted.Value(), 10)); err != nil {
		return err
	}
	if _, err := client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType,
		capacityPatch("spec", wanted), metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType,
		capacityPatch("status", wanted), metav1.PatchOptions{}, "status")
	return err
}

func capacityPatch(part string, size resource.Quantity) []byte {
	return []byte(fmt.Sprintf(`{%q:{"capacity":{"storage":%q}}}`, part, size.String()))
}
