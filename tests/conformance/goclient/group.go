package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

const (
	groupID    = "go-group"
	partitions = 4
)

// received counts how often each value arrived, and who read each partition last.
type received struct {
	mu     sync.Mutex
	values map[string]int
	owner  map[int32]string
}

func (r *received) take(consumer string) lift.Handler {
	return func(msg *lift.Message, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, consumer, err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.values[string(msg.Value())]++
		r.owner[msg.Partition()] = consumer
	}
}

// isShared returns whether two consumers read two partitions each.
func (r *received) isShared() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, consumer := range r.owner {
		counts[consumer]++
	}
	return len(r.owner) == partitions && counts["c1"] == 2 && counts["c2"] == 2
}

func (r *received) forgetOwners() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner = map[int32]string{}
}

func (r *received) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.values)
}

// runGroup lets two consumers of a group read a stream. It prints "coordinator ID" once they share
// it, reads a line when that broker is gone, and prints "ok N" once they share it again and every
// published value has arrived.
func runGroup(addresses []string) error {
	client, err := lift.Connect(addresses)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := client.CreateStream(ctx, "go.group", "go-group-stream",
		lift.Partitions(partitions), lift.ReplicationFactor(3)); err != nil {
		return err
	}
	found := &received{values: map[string]int{}, owner: map[int32]string{}}
	for _, name := range []string{"c1", "c2"} {
		consumer, err := client.CreateConsumer(groupID, lift.ConsumerID(name),
			lift.AutoOffsetEarliest(), lift.AutoCheckpoint(200*time.Millisecond),
			lift.FetchAssignmentsInterval(func(timeout time.Duration) time.Duration { return timeout / 8 }))
		if err != nil {
			return err
		}
		if err := consumer.Subscribe(ctx, []string{"go-group-stream"}, found.take(name)); err != nil {
			return err
		}
	}
	published, stopped := 0, make(chan struct{})
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		for {
			select {
			case <-stopped:
				return
			case <-time.After(10 * time.Millisecond):
			}
			value := []byte(strconv.Itoa(published))
			// Publish of this client hashes partitions to brokers, dead ones too, and would fail for
			// some partitions as long as the broker is away.
			subject := "go.group"
			if partition := published % partitions; partition != 0 {
				subject += "." + strconv.Itoa(partition)
			}
			call, done := context.WithTimeout(ctx, 2*time.Second)
			if _, err := client.PublishToSubject(call, subject, value, lift.AckPolicyAll()); err == nil {
				published++
			}
			done()
		}
	}()
	if err := until(ctx, found.isShared); err != nil {
		return fmt.Errorf("before the kill: %w", err)
	}
	metadata, err := client.FetchMetadata(ctx, lift.ConsumerGroups([]string{groupID}))
	if err != nil {
		return err
	}
	fmt.Println("coordinator", metadata.GetConsumerGroup(groupID).Coordinator())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	found.forgetOwners()
	if err := until(ctx, found.isShared); err != nil {
		return fmt.Errorf("after the kill: %w", err)
	}
	close(stopped)
	writer.Wait()
	if err := until(ctx, func() bool { return found.count() == published }); err != nil {
		return fmt.Errorf("%d of %d values arrived: %w", found.count(), published, err)
	}
	// Close of this client waits for ever for a consumer that looks for its coordinator, so that
	// the check "consumer group" closes one.
	fmt.Println("ok", published)
	return nil
}

// until waits for a condition.
func until(ctx context.Context, holds func() bool) error {
	for !holds() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// checkGroup reads a stream as the only member of a group, leaves it, and continues as another.
func checkGroup(w *world) error {
	if err := w.client.CreateStream(w.ctx, w.name, w.name); err != nil {
		return err
	}
	for round, id := range []string{"first", "second"} {
		value := []byte(id)
		if _, err := w.client.Publish(w.ctx, w.name, value, lift.AckPolicyAll()); err != nil {
			return err
		}
		found := &received{values: map[string]int{}, owner: map[int32]string{}}
		consumer, err := w.client.CreateConsumer(w.name, lift.ConsumerID(id),
			lift.AutoOffsetEarliest(), lift.AutoCheckpoint(50*time.Millisecond))
		if err != nil {
			return err
		}
		if err := consumer.Subscribe(w.ctx, []string{w.name}, found.take(id)); err != nil {
			return err
		}
		if err := until(w.ctx, func() bool { return found.count() == 1 }); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if found.values[id] != 1 {
			return fmt.Errorf("%s received %v", id, found.values)
		}
		if err := consumer.Checkpoint(w.ctx); err != nil {
			return err
		}
		if err := consumer.Close(); err != nil {
			return err
		}
	}
	metadata, err := w.client.FetchMetadata(w.ctx, lift.ConsumerGroups([]string{w.name}))
	if err != nil {
		return err
	}
	if group := metadata.GetConsumerGroup(w.name); group != nil && group.Coordinator() != "" {
		return fmt.Errorf("the group still exists, coordinated by %s", group.Coordinator())
	}
	return nil
}
