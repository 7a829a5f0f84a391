// Command goclient runs the Go client of Liftbridge against a broker and says what works.
//
//	goclient HOST:PORT
//	goclient group HOST:PORT ...
//	goclient member HOST:PORT,... GROUP STREAM NAME
//
// One line for each check, "ok NAME" or "FAIL NAME: why"; the exit code is 1 when any failed. The
// broker must have cursors turned on (cursors.stream.partitions: 1). Every check works on streams of
// its own, so the order does not matter and one failure does not bring another. With "group", two
// consumers read a stream of a cluster, and go on when their coordinator is killed (group.go). With
// "member", one consumer prints what it reads (member.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

const patience = 10 * time.Second

// world is what a check gets: a connected client and a stream name that nobody else uses.
type world struct {
	ctx    context.Context
	client lift.Client
	name   string
}

type check struct {
	name string
	run  func(*world) error
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "group" {
		if err := runGroup(os.Args[2:]); err != nil {
			fmt.Println("FAIL group:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 6 && os.Args[1] == "member" {
		if err := runMember(os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, "member:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: goclient HOST:PORT")
		os.Exit(2)
	}
	client, err := lift.Connect([]string{os.Args[1]})
	if err != nil {
		fmt.Println("FAIL connect:", err)
		os.Exit(1)
	}
	defer client.Close()
	fmt.Println("ok connect")
	failed := false
	for i, c := range checks() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		w := &world{ctx: ctx, client: client, name: fmt.Sprintf("go-%d-%d", os.Getpid(), i)}
		if err := c.run(w); err != nil {
			fmt.Printf("FAIL %s: %v\n", c.name, err)
			failed = true
		} else {
			fmt.Println("ok", c.name)
		}
		cancel()
	}
	if failed {
		client.Close()
		os.Exit(1)
	}
}

func checks() []check {
	found := []check{
		{"create", func(w *world) error { return w.create() }},
		{"create twice", createTwice},
		{"create with every option", createWithOptions},
		{"delete", deleteStream},
		{"delete unknown", deleteUnknown},
		{"publish", publish},
		{"publish policy all", publishAll},
		{"publish policy none", publishNone},
		{"publish async", publishAsync},
		{"publish to subject", publishToSubject},
		{"publish unknown stream", publishUnknown},
		{"publish by key to partitions", publishByKey},
		{"publish with expected offset", publishExpected},
		{"message fields", messageFields},
		{"subscribe unknown stream", subscribeUnknown},
		{"subscribe new only", subscribeNewOnly},
		{"subscribe resume", subscribeResume},
		{"subscribe stream deleted", subscribeDeleted},
		{"subscribe paused", subscribePaused},
		{"metadata", metadata},
		{"partition metadata", partitionMetadata},
		{"pause and publish", pauseAndPublish},
		{"pause unknown", pauseUnknown},
		{"readonly", readonly},
		{"cursor", cursor},
		{"cursor unknown", cursorUnknown},
		{"consumer group", checkGroup},
	}
	return append(found, positions()...)
}

// Streams

func (w *world) create(options ...lift.StreamOption) error {
	return w.client.CreateStream(w.ctx, w.name, w.name, options...)
}

func (w *world) createFive() error {
	if err := w.create(); err != nil {
		return err
	}
	for i := range 5 {
		if _, err := w.client.Publish(w.ctx, w.name, fmt.Appendf(nil, "%d", i)); err != nil {
			return err
		}
	}
	return nil
}

func createTwice(w *world) error {
	return first(w.create(), want(w.create(), lift.ErrStreamExists))
}

func createWithOptions(w *world) error {
	err := w.create(
		lift.Partitions(3), lift.ReplicationFactor(1), lift.MinISR(1), lift.Group("g"),
		lift.RetentionMaxBytes(1<<30), lift.RetentionMaxMessages(1_000_000),
		lift.RetentionMaxAge(time.Hour), lift.CleanerInterval(time.Minute),
		lift.SegmentMaxBytes(1<<20), lift.SegmentMaxAge(time.Minute), lift.CompactEnabled(true),
		lift.CompactMaxGoroutines(2), lift.AutoPauseTime(time.Hour),
		lift.AutoPauseDisableIfSubscribers(true), lift.OptimisticConcurrencyControl(false),
		lift.Encryption(false),
	)
	if err != nil {
		return err
	}
	info, err := w.info()
	if err != nil {
		return err
	}
	return equal("partitions", len(info.Partitions()), 3)
}

func deleteStream(w *world) error {
	if err := first(w.create(), w.client.DeleteStream(w.ctx, w.name)); err != nil {
		return err
	}
	if info, err := w.info(); err == nil {
		return fmt.Errorf("still in the metadata: %v", info)
	}
	return w.create()
}

func deleteUnknown(w *world) error {
	return want(w.client.DeleteStream(w.ctx, w.name), lift.ErrNoSuchStream)
}

func (w *world) info() (*lift.StreamInfo, error) {
	found, err := w.client.FetchMetadata(w.ctx)
	if err != nil {
		return nil, err
	}
	if info := found.GetStream(w.name); info != nil {
		return info, nil
	}
	return nil, errors.New("not in the metadata")
}

// Publishing

func publish(w *world) error {
	if err := w.create(); err != nil {
		return err
	}
	ack, err := w.client.Publish(w.ctx, w.name, []byte("v"), lift.CorrelationID("c"))
	if err != nil {
		return err
	}
	return first(
		equal("stream", ack.Stream(), w.name),
		equal("subject", ack.PartitionSubject(), w.name),
		equal("offset", ack.Offset(), int64(0)),
		equal("correlation id", ack.CorrelationID(), "c"),
		isTrue("reception time", !ack.ReceptionTimestamp().IsZero()),
	)
}

func publishAll(w *world) error {
	if err := w.create(); err != nil {
		return err
	}
	ack, err := w.client.Publish(w.ctx, w.name, []byte("v"), lift.AckPolicyAll())
	return then(err, func() error { return equal("offset", ack.Offset(), int64(0)) })
}

func publishNone(w *world) error {
	if err := w.create(); err != nil {
		return err
	}
	ack, err := w.client.Publish(w.ctx, w.name, []byte("quiet"), lift.AckPolicyNone())
	if err != nil {
		return err
	}
	if ack != nil {
		return fmt.Errorf("got an ack: %v", ack)
	}
	messages, _, err := w.read(1, lift.StartAtEarliestReceived())
	return then(err, func() error { return equal("value", string(messages[0].Value()), "quiet") })
}

func publishAsync(w *world) error {
	if err := w.create(); err != nil {
		return err
	}
	const count = 1_000
	var group sync.WaitGroup
	var lock sync.Mutex
	var failure error
	last := int64(-1)
	group.Add(count)
	for range count {
		err := w.client.PublishAsync(w.ctx, w.name, []byte("v"), func(ack *lift.Ack, err error) {
			defer group.Done()
			lock.Lock()
			defer lock.Unlock()
			if failure = first(failure, err); failure == nil {
				failure = equal("offset", ack.Offset(), last+1)
				last = ack.Offset()
			}
		})
		if err != nil {
			return err
		}
	}
	group.Wait()
	return first(failure, equal("last offset", last, int64(count-1)))
}

func publishToSubject(w *world) error {
	if err := w.create(); err != nil {
		return err
	}
	ack, err := w.client.PublishToSubject(w.ctx, w.name, []byte("v"), lift.Key([]byte("k")))
	if err != nil {
		return err
	}
	messages, _, err := w.read(1, lift.StartAtEarliestReceived())
	return then(err, func() error {
		return first(
			equal("stream", ack.Stream(), w.name),
			equal("key", string(messages[0].Key()), "k"),
		)
	})
}

func publishUnknown(w *world) error {
	_, err := w.client.Publish(w.ctx, w.name, []byte("v"))
	if err == nil {
		return errors.New("was accepted")
	}
	return nil
}

func publishByKey(w *world) error {
	if err := w.create(lift.Partitions(4)); err != nil {
		return err
	}
	where := map[string]string{}
	for i := range 40 {
		key := fmt.Sprintf("key-%d", i%10)
		ack, err := w.client.Publish(w.ctx, w.name, []byte("v"), lift.Key([]byte(key)),
			lift.PartitionByKey())
		if err != nil {
			return err
		}
		if seen, known := where[key]; known && seen != ack.MessageSubject() {
			return fmt.Errorf("%s went to %s and %s", key, seen, ack.MessageSubject())
		}
		where[key] = ack.MessageSubject()
	}
	used := map[string]bool{}
	for _, subject := range where {
		used[subject] = true
	}
	return isTrue("several partitions used", len(used) > 1)
}

func publishExpected(w *world) error {
	if err := w.create(lift.OptimisticConcurrencyControl(true)); err != nil {
		return err
	}
	for i := range int64(3) {
		ack, err := w.client.Publish(w.ctx, w.name, []byte("v"), lift.ExpectedOffset(i))
		if err := then(err, func() error { return equal("offset", ack.Offset(), i) }); err != nil {
			return err
		}
	}
	_, err := w.client.Publish(w.ctx, w.name, []byte("v"), lift.ExpectedOffset(0))
	if err == nil || !strings.Contains(err.Error(), "incorrect expected offset") {
		return fmt.Errorf("a wrong expected offset gave: %v", err)
	}
	return nil
}

func messageFields(w *world) error {
	if err := w.create(); err != nil {
		return err
	}
	before := time.Now().Add(-time.Second)
	_, err := w.client.Publish(w.ctx, w.name, []byte("value"), lift.Key([]byte("key")),
		lift.Header("h", []byte("1")))
	if err != nil {
		return err
	}
	messages, _, err := w.read(1, lift.StartAtEarliestReceived())
	if err != nil {
		return err
	}
	m := messages[0]
	return first(
		equal("key", string(m.Key()), "key"),
		equal("value", string(m.Value()), "value"),
		equal("header", string(m.Headers()["h"]), "1"),
		equal("subject", m.Subject(), w.name),
		equal("stream", m.Stream(), w.name),
		equal("partition", m.Partition(), int32(0)),
		isTrue("timestamp", m.Timestamp().After(before)),
	)
}

// Subscribing

// read subscribes and returns when count messages came or the subscription ended with an error,
// which it returns as the second value.
func (w *world) read(count int, options ...lift.SubscriptionOption) ([]*lift.Message, error, error) {
	type event struct {
		message *lift.Message
		err     error
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	events := make(chan event, 100)
	err := w.client.Subscribe(ctx, w.name, func(m *lift.Message, err error) {
		select {
		case events <- event{m, err}:
		case <-ctx.Done():
		}
	}, options...)
	if err != nil {
		return nil, nil, err
	}
	var found []*lift.Message
	for len(found) < count {
		select {
		case e := <-events:
			if e.err != nil {
				return found, e.err, nil
			}
			found = append(found, e.message)
		case <-w.ctx.Done():
			return nil, nil, fmt.Errorf("%d of %d messages came", len(found), count)
		}
	}
	return found, nil, nil
}

// positions are the start and stop positions over a log with the offsets 0 to 4.
func positions() []check {
	early := time.Unix(0, 0)
	table := []struct {
		name    string
		options []lift.SubscriptionOption
		want    []int64
		ends    bool
	}{
		{"earliest", []lift.SubscriptionOption{lift.StartAtEarliestReceived()}, []int64{0, 1, 2, 3, 4}, false},
		{"latest", []lift.SubscriptionOption{lift.StartAtLatestReceived()}, []int64{4}, false},
		{"offset", []lift.SubscriptionOption{lift.StartAtOffset(3)}, []int64{3, 4}, false},
		{"time", []lift.SubscriptionOption{lift.StartAtTime(early)}, []int64{0, 1, 2, 3, 4}, false},
		{"time delta", []lift.SubscriptionOption{lift.StartAtTimeDelta(time.Hour)}, []int64{0, 1, 2, 3, 4}, false},
		{"stop at offset", []lift.SubscriptionOption{lift.StartAtEarliestReceived(), lift.StopAtOffset(2)}, []int64{0, 1, 2}, true},
		{"stop at latest", []lift.SubscriptionOption{lift.StartAtOffset(1), lift.StopAtLatestReceived()}, []int64{1, 2, 3, 4}, true},
		{"stop at time", []lift.SubscriptionOption{lift.StartAtEarliestReceived(), stopNow}, []int64{0, 1, 2, 3, 4}, true},
		{"replica", []lift.SubscriptionOption{lift.StartAtEarliestReceived(), lift.ReadISRReplica()}, []int64{0, 1, 2, 3, 4}, false},
	}
	found := make([]check, 0, len(table))
	for _, row := range table {
		found = append(found, check{"subscribe " + row.name, func(w *world) error {
			if err := w.createFive(); err != nil {
				return err
			}
			count := len(row.want)
			if row.ends {
				count++
			}
			messages, ended, err := w.read(count, row.options...)
			if err != nil {
				return err
			}
			if row.ends {
				if err := want(ended, lift.ErrReadonlyPartition); err != nil {
					return err
				}
			} else if ended != nil {
				return ended
			}
			return equal("offsets", fmt.Sprint(offsets(messages)), fmt.Sprint(row.want))
		}})
	}
	return found
}

// stopNow stops at the time of the call; the client refuses times in the future.
func stopNow(options *lift.SubscriptionOptions) error {
	return lift.StopAtTime(time.Now())(options)
}

func offsets(messages []*lift.Message) []int64 {
	found := make([]int64, 0, len(messages))
	for _, m := range messages {
		found = append(found, m.Offset())
	}
	return found
}

func subscribeUnknown(w *world) error {
	// The client looks the stream up in its metadata and gives up by itself.
	_, _, err := w.read(1)
	return isTrue("refusal", err != nil)
}

func subscribeNewOnly(w *world) error {
	if err := w.createFive(); err != nil {
		return err
	}
	events := make(chan *lift.Message, 1)
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	err := w.client.Subscribe(ctx, w.name, func(m *lift.Message, err error) {
		if err == nil {
			events <- m
		}
	}, lift.StartAtNewOnly())
	if err != nil {
		return err
	}
	if _, err := w.client.Publish(w.ctx, w.name, []byte("new")); err != nil {
		return err
	}
	select {
	case m := <-events:
		return equal("offset", m.Offset(), int64(5))
	case <-w.ctx.Done():
		return errors.New("nothing came")
	}
}

func subscribeResume(w *world) error {
	if err := first(w.createFive(), w.client.PauseStream(w.ctx, w.name)); err != nil {
		return err
	}
	messages, ended, err := w.read(5, lift.StartAtEarliestReceived(), lift.Resume())
	return first(err, ended, equal("messages", len(messages), 5))
}

func subscribeDeleted(w *world) error {
	if err := w.createFive(); err != nil {
		return err
	}
	return w.endOf(func() error { return w.client.DeleteStream(w.ctx, w.name) }, lift.ErrStreamDeleted)
}

func subscribePaused(w *world) error {
	if err := w.createFive(); err != nil {
		return err
	}
	return w.endOf(func() error { return w.client.PauseStream(w.ctx, w.name) }, lift.ErrPartitionPaused)
}

// endOf acts beside a running subscription and expects it to end with an error.
func (w *world) endOf(act func() error, wanted error) error {
	ended := make(chan error, 1)
	err := w.client.Subscribe(w.ctx, w.name, func(_ *lift.Message, err error) {
		if err != nil {
			ended <- err
		}
	})
	if err := first(err, act()); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return want(err, wanted)
	case <-w.ctx.Done():
		return errors.New("the subscription did not end")
	}
}

// Metadata, pause, read-only, cursors

func metadata(w *world) error {
	if err := w.create(lift.Partitions(2)); err != nil {
		return err
	}
	found, err := w.client.FetchMetadata(w.ctx)
	if err != nil {
		return err
	}
	info := found.GetStream(w.name)
	if info == nil {
		return errors.New("stream is missing")
	}
	brokers := found.Brokers()
	return first(
		equal("brokers", len(brokers), 1),
		equal("partitions", len(info.Partitions()), 2),
		equal("subject", info.Subject(), w.name),
		isTrue("creation time", time.Since(info.CreationTime()) < time.Minute),
		equal("leader", info.GetPartition(1).Leader().ID(), brokers[0].ID()),
		equal("isr", len(info.GetPartition(1).ISR()), 1),
		isTrue("partition count", brokers[0].PartitionCount() >= 2),
	)
}

func partitionMetadata(w *world) error {
	if err := w.createFive(); err != nil {
		return err
	}
	info, err := w.client.FetchPartitionMetadata(w.ctx, w.name, 0)
	if err != nil {
		return err
	}
	received := info.MessagesReceivedTimestamps()
	return first(
		equal("newest offset", info.NewestOffset(), int64(4)),
		equal("high watermark", info.HighWatermark(), int64(4)),
		isTrue("first received", !received.FirstTime().IsZero()),
		isTrue("latest received", !received.LatestTime().Before(received.FirstTime())),
	)
}

func pauseAndPublish(w *world) error {
	if err := first(w.createFive(), w.client.PauseStream(w.ctx, w.name)); err != nil {
		return err
	}
	info, err := w.info()
	if err := then(err, func() error { return isTrue("paused", info.GetPartition(0).Paused()) }); err != nil {
		return err
	}
	ack, err := w.client.Publish(w.ctx, w.name, []byte("v"))
	return then(err, func() error { return equal("offset", ack.Offset(), int64(5)) })
}

func pauseUnknown(w *world) error {
	return want(w.client.PauseStream(w.ctx, w.name), lift.ErrNoSuchPartition)
}

func readonly(w *world) error {
	if err := first(w.createFive(), w.client.SetStreamReadonly(w.ctx, w.name)); err != nil {
		return err
	}
	_, refused := w.client.Publish(w.ctx, w.name, []byte("v"))
	_, ended, err := w.read(6, lift.StartAtEarliestReceived())
	if err := first(
		want(refused, lift.ErrReadonlyPartition), err, want(ended, lift.ErrReadonlyPartition),
	); err != nil {
		return err
	}
	if err := w.client.SetStreamReadonly(w.ctx, w.name, lift.Readonly(false)); err != nil {
		return err
	}
	ack, err := w.client.Publish(w.ctx, w.name, []byte("v"))
	return then(err, func() error { return equal("offset", ack.Offset(), int64(5)) })
}

func cursor(w *world) error {
	for _, offset := range []int64{7, 3} {
		if err := w.client.SetCursor(w.ctx, "me", w.name, 0, offset); err != nil {
			return err
		}
		found, err := w.client.FetchCursor(w.ctx, "me", w.name, 0)
		if err := first(err, equal("cursor", found, offset)); err != nil {
			return err
		}
	}
	return nil
}

func cursorUnknown(w *world) error {
	found, err := w.client.FetchCursor(w.ctx, "nobody", w.name, 0)
	return first(err, equal("cursor", found, int64(-1)))
}

// Claims

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// then goes on only without an error, for what cannot be looked at otherwise.
func then(err error, next func() error) error {
	if err != nil {
		return err
	}
	return next()
}

func want(err, wanted error) error {
	if errors.Is(err, wanted) {
		return nil
	}
	return fmt.Errorf("error is %v, not %v", err, wanted)
}

func equal[T comparable](what string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s is %v, not %v", what, got, wanted)
	}
	return nil
}

func isTrue(what string, claim bool) error {
	if !claim {
		return fmt.Errorf("%s does not hold", what)
	}
	return nil
}
