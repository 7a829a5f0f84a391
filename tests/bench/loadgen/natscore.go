package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// natsPublish measures core publishing: nothing is stored, nobody answers. The final flush waits
// until the server has read everything.
func natsPublish(o *options) (result, error) {
	nc, err := nats.Connect(o.nats)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	start := time.Now()
	if err := publishPlain(nc, o); err != nil {
		return nil, err
	}
	return rated(o.count, time.Since(start)), nil
}

// publishPlain sends count messages at the rate asked for and flushes.
func publishPlain(nc *nats.Conn, o *options) error {
	value := newValue(o.size)
	pace := newPacer(o.rate)
	for i := range o.count {
		pace.wait(i)
		stamp(value, uint64(i))
		if err := nc.Publish(o.subject, value); err != nil {
			return err
		}
	}
	return nc.FlushTimeout(time.Minute)
}

// intake publishes plainly and then watches how many messages the stream holds. stored_rate counts
// from the first publish to the moment the last message is seen stored, so it never flatters.
func intake(o *options, stored func() (int64, error)) (result, error) {
	nc, err := nats.Connect(o.nats)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	before, err := stored()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := publishPlain(nc, o); err != nil {
		return nil, err
	}
	published := time.Since(start)
	count, grown := int64(0), time.Now()
	for count < int64(o.count) && time.Since(grown) < o.idle {
		time.Sleep(20 * time.Millisecond) // each look costs the broker a request
		now, err := stored()
		if err != nil {
			return nil, err
		}
		if now-before > count {
			count, grown = now-before, time.Now()
		}
	}
	answer := rated(int(count), grown.Sub(start))
	answer["offered"] = o.count
	answer["offered_rate"] = float64(o.count) / published.Seconds()
	answer["lost"] = int64(o.count) - count
	return answer, nil
}

// natsCount is the second, plain subscriber that sees every publish. It prints "ready" on standard
// error once the server knows of the subscription, and the count when standard input closes.
func natsCount(o *options) (result, error) {
	nc, err := nats.Connect(o.nats)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	var count, bytes atomic.Int64
	subscription, err := nc.Subscribe(o.subject, func(m *nats.Msg) {
		count.Add(1)
		bytes.Add(int64(len(m.Data)))
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(subscription.SetPendingLimits(-1, -1), nc.Flush()); err != nil {
		return nil, err
	}
	fmt.Fprintln(os.Stderr, "ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return nil, err
	}
	// Everything published before standard input closed may still be on its way here.
	seen := int64(-1)
	for seen != count.Load() {
		seen = count.Load()
		time.Sleep(time.Second)
	}
	return result{"count": seen, "bytes": bytes.Load()}, nil
}
