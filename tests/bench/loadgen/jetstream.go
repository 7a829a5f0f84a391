package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func jsConnect(o *options) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(o.nats)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(o.window))
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// jsCreate makes the stream with what JetStream does by default: file storage, -replicas copies.
func jsCreate(o *options) (result, error) {
	nc, js, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: o.stream, Subjects: []string{o.subject}, Storage: jetstream.FileStorage,
		Replicas: o.replicas,
	})
	return result{}, err
}

// jsPublish keeps -window publishes in flight. Mode "library" is PublishAsync of the jetstream
// package; the default speaks the same protocol with one reply subscription and a counting window,
// which costs the client less, so that the server is what is measured.
func jsPublish(o *options) (result, error) {
	nc, js, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	if o.mode == "library" {
		return jsPublishLibrary(o, js)
	}
	return jsPublishDirect(o, nc)
}

func jsPublishLibrary(o *options, js jetstream.JetStream) (result, error) {
	value := newValue(o.size)
	futures := make([]jetstream.PubAckFuture, 0, o.count)
	start := time.Now()
	for i := range o.count {
		stamp(value, uint64(i))
		future, err := js.PublishAsync(o.subject, value, jetstream.WithStallWait(10*time.Second))
		if err != nil {
			return nil, err
		}
		futures = append(futures, future)
	}
	<-js.PublishAsyncComplete()
	elapsed := time.Since(start)
	for _, future := range futures {
		select {
		case <-future.Ok():
		default:
			return nil, errors.New("a publish was not acknowledged")
		}
	}
	return rated(o.count, elapsed), nil
}

func jsPublishDirect(o *options, nc *nats.Conn) (result, error) {
	window := make(chan struct{}, o.window)
	sent := make([]time.Time, o.window)
	samples := make([]time.Duration, 0, o.count)
	done := make(chan error, 1)
	var acked int
	inbox := nats.NewInbox()
	subscription, err := nc.Subscribe(inbox+".*", func(m *nats.Msg) {
		if failed := checkAck(m, len(inbox)+1, acked); failed != nil {
			done <- failed
			return
		}
		samples = append(samples, time.Since(sent[acked%len(sent)]))
		acked++
		<-window
		if acked == o.count {
			done <- nil
		}
	})
	if err != nil {
		return nil, err
	}
	if err := subscription.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	value := newValue(o.size)
	start := time.Now()
	for i := range o.count {
		select {
		case window <- struct{}{}:
		case err := <-done:
			return nil, err
		}
		stamp(value, uint64(i))
		sent[i%len(sent)] = time.Now()
		if err := nc.PublishRequest(o.subject, inbox+"."+strconv.Itoa(i), value); err != nil {
			return nil, err
		}
	}
	if err := <-done; err != nil {
		return nil, err
	}
	answer := rated(o.count, time.Since(start))
	answer["in_flight"] = o.window
	percentiles(answer, samples)
	return answer, nil
}

// checkAck verifies that a publish ack is positive and for the message expected next.
func checkAck(m *nats.Msg, prefix int, want int) error {
	if got := m.Subject[prefix:]; got != strconv.Itoa(want) {
		return fmt.Errorf("ack %d: is for message %s", want, got)
	}
	// A positive ack starts with the stream; an error starts with {"error".
	if len(m.Data) < 10 || string(m.Data[:10]) != `{"stream":` {
		return fmt.Errorf("ack %d: %s", want, m.Data)
	}
	return nil
}

// jsLatency publishes one message at a time and waits for its ack.
func jsLatency(o *options) (result, error) {
	nc, js, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	value := newValue(o.size)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return measureOneAtATime(o, func(i int) error {
		stamp(value, uint64(i))
		_, err := js.Publish(ctx, o.subject, value)
		return err
	})
}

// jsReplay reads count messages from the first: mode "ordered" by the ordered consumer of nats.go,
// which notices gaps and repeats; "push" by a consumer without acks that pushes to a plain
// subscription, which is faster and notices nothing; "pull" by a plain pull consumer.
func jsReplay(o *options) (result, error) {
	nc, js, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	check := newChecker(o.size)
	done := make(chan error, 1)
	var seen atomic.Int64
	deliver := func(data []byte) {
		if check.next == uint64(o.count) {
			return
		}
		if err := check.add(data); err != nil {
			done <- err
			return
		}
		if check.next == uint64(o.count) {
			done <- nil
		}
		seen.Store(int64(check.next))
	}
	start := time.Now()
	stop, err := startReplay(o, nc, js, deliver)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := awaitReplay(o, done, &seen); err != nil {
		return nil, err
	}
	answer := rated(o.count, time.Since(start))
	answer["bytes"] = check.bytes
	return answer, nil
}

func awaitReplay(o *options, done chan error, seen *atomic.Int64) error {
	last := int64(-1)
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(o.idle):
			if now := seen.Load(); now == last {
				return fmt.Errorf("nothing arrived for %s after %d messages", o.idle, now)
			} else {
				last = now
			}
		}
	}
}

func startReplay(o *options, nc *nats.Conn, js jetstream.JetStream, deliver func([]byte)) (func(), error) {
	ctx := context.Background()
	nothing := func() {}
	switch o.mode {
	case "push":
		legacy, err := nc.JetStream()
		if err != nil {
			return nothing, err
		}
		inbox := nats.NewInbox()
		subscription, err := nc.Subscribe(inbox, func(m *nats.Msg) { deliver(m.Data) })
		if err != nil {
			return nothing, err
		}
		if err := subscription.SetPendingLimits(-1, -1); err != nil {
			return nothing, err
		}
		_, err = legacy.AddConsumer(o.stream, &nats.ConsumerConfig{
			DeliverSubject: inbox, AckPolicy: nats.AckNonePolicy, DeliverPolicy: nats.DeliverAllPolicy,
			InactiveThreshold: time.Minute, MemoryStorage: true,
		})
		return nothing, err
	case "", "ordered", "pull":
		return startPull(ctx, o, js, deliver)
	default:
		return nothing, fmt.Errorf("unknown mode %q", o.mode)
	}
}

func startPull(ctx context.Context, o *options, js jetstream.JetStream, deliver func([]byte)) (func(), error) {
	stream, err := js.Stream(ctx, o.stream)
	if err != nil {
		return nil, err
	}
	var consumer jetstream.Consumer
	if o.mode != "pull" {
		consumer, err = stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	} else {
		consumer, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
		})
	}
	if err != nil {
		return nil, err
	}
	handle, err := consumer.Consume(
		func(m jetstream.Msg) { deliver(m.Data()) }, jetstream.PullMaxMessages(50_000))
	if err != nil {
		return nil, err
	}
	return handle.Stop, nil
}

// jsIntake publishes without waiting for acks and polls the stream until all is stored.
func jsIntake(o *options) (result, error) {
	nc, js, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	stream, err := js.Stream(ctx, o.stream)
	if err != nil {
		return nil, err
	}
	return intake(o, func() (int64, error) {
		info, err := stream.Info(ctx)
		if err != nil {
			return 0, err
		}
		return int64(info.State.Msgs), nil
	})
}
