package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const (
	provisionerName = "liftbridge.test/volume"
	nodePVPath      = "/var/lib/pv" // where a node sees its volumes
	mediumParameter = "medium"      // of the storage class: "disk" or "directory"
	commandTimeout  = 60 * time.Second
)

// volumes makes and removes volumes by volume.sh, which lies beside up.sh. All "nodes" live on one
// machine, so it needs no helper pod on the node.
type volumes struct{ command string }

func (p volumes) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, p.command, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", p.command, args, err, out)
	}
	return nil
}

func (p volumes) Provision(ctx context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	if o.SelectedNodeName == "" {
		return nil, controller.ProvisioningFinished, fmt.Errorf("no node selected: the class needs volumeBindingMode: WaitForFirstConsumer")
	}
	size := o.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	medium := o.StorageClass.Parameters[mediumParameter]
	if err := p.run(ctx, "create", o.SelectedNodeName, o.PVName, strconv.FormatInt(size.Value(), 10), medium); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	mode := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			VolumeMode:                    &mode,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: size},
			// "local", not "hostPath": local volumes honour fsGroup.
			PersistentVolumeSource: v1.PersistentVolumeSource{
				Local: &v1.LocalVolumeSource{Path: filepath.Join(nodePVPath, o.PVName)},
			},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{
					MatchExpressions: []v1.NodeSelectorRequirement{{
						Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{o.SelectedNodeName},
					}},
				}},
			}},
		},
	}, controller.ProvisioningFinished, nil
}

func (p volumes) Delete(ctx context.Context, pv *v1.PersistentVolume) error {
	return p.run(ctx, "delete", nodeOf(pv), pv.Name)
}

// nodeOf is the node that holds a volume made by Provision.
func nodeOf(pv *v1.PersistentVolume) string {
	return pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
}

func runProvisioner() {
	fs := flag.NewFlagSet("pv-provisioner", flag.ExitOnError)
	kubeconfig := fs.String("kubeconfig", "", "path of the kubeconfig")
	command := fs.String("volume-command", "", "path of volume.sh")
	fs.Parse(os.Args[1:]) //nolint:errcheck // ExitOnError

	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	cfg.QPS, cfg.Burst = 50, 100
	ctx := context.Background()
	client := kubernetes.NewForConfigOrDie(cfg)
	p := volumes{*command}
	go growForever(ctx, client, p)
	controller.NewProvisionController(ctx, client, provisionerName, p,
		controller.LeaderElection(false),
		controller.MetricsPort(0),
	).Run(ctx)
}
