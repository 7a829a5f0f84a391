package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"github.com/nats-io/nats.go"
)

// deliverWarmUp is how many messages are sent before those that count.
const deliverWarmUp = 1000

// delivery measures the time from when a message is due until a subscriber of this process has it.
type delivery struct {
	check   *checker
	pace    *pacer
	total   int
	samples []time.Duration
	done    chan error
}

func newDelivery(o *options) (*delivery, error) {
	if o.rate <= 0 {
		return nil, fmt.Errorf("-rate must be given: messages a second")
	}
	return &delivery{
		check:   newChecker(o.size),
		pace:    newPacer(o.rate),
		total:   deliverWarmUp + o.count,
		samples: make([]time.Duration, 0, o.count),
		done:    make(chan error, 2), // the subscriber's end or failure, and the one of the acks
	}, nil
}

// arrive takes the next message of the subscriber; it returns false after the last and the first
// wrong one.
func (d *delivery) arrive(value []byte) bool {
	now := time.Now()
	sequence := int(d.check.next)
	if err := d.check.add(value); err != nil {
		d.done <- err
		return false
	}
	if sequence >= deliverWarmUp {
		d.samples = append(d.samples, now.Sub(d.pace.due(sequence)))
	}
	if sequence+1 == d.total {
		d.done <- nil
		return false
	}
	return true
}

// run sends all messages, each when it is due, and waits until the subscriber has them.
func (d *delivery) run(o *options, send func(i int) error) (result, error) {
	start := time.Now()
	d.pace.start = start
	for i := range d.total {
		time.Sleep(time.Until(d.pace.due(i)))
		if err := send(i); err != nil {
			return nil, err
		}
	}
	select {
	case err := <-d.done:
		if err != nil {
			return nil, err
		}
	case <-time.After(o.idle):
		return nil, fmt.Errorf("the subscriber did not get all of %d messages", d.total)
	}
	answer := rated(o.count, time.Since(start)*time.Duration(o.count)/time.Duration(d.total))
	answer["warm_up"] = deliverWarmUp
	answer["open_loop"] = true
	percentiles(answer, d.samples)
	return answer, nil
}

// lbDeliver publishes over PublishAsync to a Subscribe call on a connection of its own.
func lbDeliver(o *options) (result, error) {
	d, err := newDelivery(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reading, reader, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer reading.Close()
	subscription, err := reader.Subscribe(ctx, &api.SubscribeRequest{
		Stream: o.stream, StartPosition: api.StartPosition_NEW_ONLY,
	})
	if err != nil {
		return nil, err
	}
	if _, err := subscription.Recv(); err != nil { // the empty message that says "subscribed"
		return nil, err
	}
	go func() {
		for {
			message, err := subscription.Recv()
			if err != nil {
				d.done <- err
				return
			}
			if !d.arrive(message.GetValue()) {
				return
			}
		}
	}()
	writing, writer, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer writing.Close()
	publisher, err := newAsyncPublisher(ctx, writer, o)
	if err != nil {
		return nil, err
	}
	go func() {
		if err := publisher.receive(d.total); err != nil {
			publisher.done <- err
		}
	}()
	return d.run(o, publisher.send)
}

// jsDeliver publishes with acks to a consumer without acks that pushes to a plain subscription on
// a connection of its own: JetStream's quickest way.
func jsDeliver(o *options) (result, error) {
	d, err := newDelivery(o)
	if err != nil {
		return nil, err
	}
	reading, _, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer reading.Close()
	legacy, err := reading.JetStream()
	if err != nil {
		return nil, err
	}
	deliveries := nats.NewInbox()
	if _, err := reading.Subscribe(deliveries, func(m *nats.Msg) { d.arrive(m.Data) }); err != nil {
		return nil, err
	}
	if _, err := legacy.AddConsumer(o.stream, &nats.ConsumerConfig{
		DeliverSubject: deliveries, AckPolicy: nats.AckNonePolicy, DeliverPolicy: nats.DeliverNewPolicy,
		InactiveThreshold: time.Minute, MemoryStorage: true,
	}); err != nil {
		return nil, err
	}
	writing, _, err := jsConnect(o)
	if err != nil {
		return nil, err
	}
	defer writing.Close()
	acked := 0
	acks := nats.NewInbox()
	if _, err := writing.Subscribe(acks+".*", func(m *nats.Msg) {
		if failed := checkAck(m, len(acks)+1, acked); failed != nil {
			d.done <- failed
		}
		acked++
	}); err != nil {
		return nil, err
	}
	value := newValue(o.size)
	return d.run(o, func(i int) error {
		stamp(value, uint64(i))
		return writing.PublishRequest(o.subject, acks+"."+strconv.Itoa(i), value)
	})
}
