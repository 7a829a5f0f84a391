package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	api "github.com/liftbridge-io/liftbridge-api/v2/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// dial opens one connection. The window is set because grpc-go starts with 64 KiB and takes a
// while to grow it; it is the same for every broker measured.
func dial(o *options) (*grpc.ClientConn, api.APIClient, error) {
	settings := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if o.grpcWin > 0 {
		settings = append(settings,
			grpc.WithInitialWindowSize(int32(o.grpcWin)),
			grpc.WithInitialConnWindowSize(int32(o.grpcWin)))
	}
	conn, err := grpc.NewClient(o.server, settings...)
	if err != nil {
		return nil, nil, err
	}
	return conn, api.NewAPIClient(conn), nil
}

// lbCreate creates streams and reports the time of all of them and the slowest.
func lbCreate(o *options) (result, error) {
	conn, client, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var next atomic.Int64
	var failed atomic.Value
	samples := make([]time.Duration, o.count)
	var group sync.WaitGroup
	start := time.Now()
	for range max(o.parallel, 1) {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= o.count || failed.Load() != nil {
					return
				}
				name, subject := o.stream, o.subject
				if o.count > 1 {
					name += "-" + strconv.Itoa(i)
					subject += "." + strconv.Itoa(i)
				}
				from := time.Now()
				if _, err := client.CreateStream(ctx, &api.CreateStreamRequest{
					Name: name, Subject: subject, ReplicationFactor: int32(o.replicas),
				}); err != nil {
					failed.Store(err)
					return
				}
				samples[i] = time.Since(from)
			}
		})
	}
	group.Wait()
	if err, ok := failed.Load().(error); ok {
		return nil, err
	}
	answer := rated(o.count, time.Since(start))
	percentiles(answer, samples)
	return answer, nil
}

// asyncPublisher is one PublishAsync call: send takes a place in the window, the receiver checks
// that acks come in the order of sending and gives the place back.
type asyncPublisher struct {
	stream  grpc.BidiStreamingClient[api.PublishRequest, api.PublishResponse]
	request *api.PublishRequest
	window  chan struct{}
	sent    []time.Time // by sequence modulo the window
	samples []time.Duration
	first   int64 // offset of the first ack
	last    int64
	done    chan error
}

func newAsyncPublisher(ctx context.Context, client api.APIClient, o *options) (*asyncPublisher, error) {
	stream, err := client.PublishAsync(ctx)
	if err != nil {
		return nil, err
	}
	return &asyncPublisher{
		stream:  stream,
		request: newRequest(o),
		window:  make(chan struct{}, o.window),
		sent:    make([]time.Time, o.window),
		samples: make([]time.Duration, 0, o.count),
		first:   -1,
		last:    -1,
		done:    make(chan error, 1),
	}, nil
}

// send publishes the message with this sequence; it blocks while the window is full.
func (p *asyncPublisher) send(sequence int) error {
	select {
	case p.window <- struct{}{}:
	case err := <-p.done:
		return err
	}
	p.sent[sequence%len(p.sent)] = time.Now()
	stamp(p.request.Value, uint64(sequence))
	p.request.CorrelationId = strconv.Itoa(sequence)
	return p.stream.Send(p.request)
}

// receive takes count acks.
func (p *asyncPublisher) receive(count int) error {
	for i := range count {
		response, err := p.stream.Recv()
		if err != nil {
			return fmt.Errorf("ack %d: %w", i, err)
		}
		if refused := response.GetAsyncError(); refused != nil {
			return fmt.Errorf("ack %d: %s %s", i, refused.GetCode(), refused.GetMessage())
		}
		ack := response.GetAck()
		if ack.GetCorrelationId() != strconv.Itoa(i) {
			return fmt.Errorf("ack %d: is for message %q", i, ack.GetCorrelationId())
		}
		if ack.GetOffset() <= p.last {
			return fmt.Errorf("ack %d: offset %d after %d", i, ack.GetOffset(), p.last)
		}
		if p.first < 0 {
			p.first = ack.GetOffset()
		}
		p.last = ack.GetOffset()
		p.samples = append(p.samples, time.Since(p.sent[i%len(p.sent)]))
		<-p.window
	}
	return nil
}

// publish sends count messages and waits for their acks.
func (p *asyncPublisher) publish(count int, pace *pacer) error {
	go func() { p.done <- p.receive(count) }()
	for i := range count {
		pace.wait(i)
		if err := p.send(i); err != nil {
			if errors.Is(err, io.EOF) {
				err = <-p.done
			}
			return err
		}
	}
	return <-p.done
}

// lbPublish shares count messages among the PublishAsync calls and reports the rate of all.
func lbPublish(o *options) (result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	publishers := make([]*asyncPublisher, 0, o.streams)
	var client api.APIClient
	for i := range o.streams {
		if i < max(o.conns, 1) {
			conn, dialled, err := dial(o)
			if err != nil {
				return nil, err
			}
			defer conn.Close()
			client = dialled
		}
		publisher, err := newAsyncPublisher(ctx, client, o)
		if err != nil {
			return nil, err
		}
		publishers = append(publishers, publisher)
	}
	share := o.count / o.streams
	failures := make(chan error, o.streams)
	start := time.Now()
	for _, publisher := range publishers {
		go func() { failures <- publisher.publish(share, newPacer(o.rate/float64(o.streams))) }()
	}
	for range publishers {
		if err := <-failures; err != nil {
			return nil, err
		}
	}
	elapsed := time.Since(start)
	answer := rated(share*o.streams, elapsed)
	var samples []time.Duration
	first, last := publishers[0].first, int64(0)
	for _, publisher := range publishers {
		samples = append(samples, publisher.samples...)
		first, last = min(first, publisher.first), max(last, publisher.last)
	}
	percentiles(answer, samples)
	answer["in_flight"] = o.window * o.streams
	answer["first_offset"], answer["last_offset"] = first, last
	if last-first+1 != int64(share*o.streams) {
		return nil, fmt.Errorf("acked offsets %d to %d do not hold %d messages", first, last, share*o.streams)
	}
	return answer, nil
}

// lbLatency publishes one message at a time over one PublishAsync call or by the unary call.
func lbLatency(o *options) (result, error) {
	conn, client, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	request := newRequest(o)
	if o.mode == "unary" {
		return measureOneAtATime(o, func(i int) error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			stamp(request.Value, uint64(i))
			response, err := client.Publish(ctx, request)
			if err == nil && response.GetAck() == nil {
				err = errors.New("no ack")
			}
			return err
		})
	}
	stream, err := client.PublishAsync(context.Background())
	if err != nil {
		return nil, err
	}
	return measureOneAtATime(o, func(i int) error {
		stamp(request.Value, uint64(i))
		request.CorrelationId = strconv.Itoa(i)
		if err := stream.Send(request); err != nil {
			return err
		}
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if response.GetAsyncError() != nil || response.GetAck().GetCorrelationId() != request.CorrelationId {
			return fmt.Errorf("message %d: %v", i, response)
		}
		return nil
	})
}

// lbReplay reads count messages from the earliest offset; offsets must be consecutive.
func lbReplay(o *options) (result, error) {
	conn, client, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	start := time.Now()
	stream, err := client.Subscribe(ctx, &api.SubscribeRequest{
		Stream: o.stream, StartPosition: api.StartPosition_EARLIEST,
	})
	if err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); err != nil { // the empty message that says "subscribed"
		return nil, err
	}
	check := newChecker(o.size)
	loose := o.mode == "any-value" // several publishers: sequences interleave, offsets do not
	for i := range o.count {
		message, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		if message.GetOffset() != int64(i) {
			return nil, fmt.Errorf("message %d: offset %d", i, message.GetOffset())
		}
		if loose {
			check.next = sequenceOf(message.GetValue())
		}
		if err := check.add(message.GetValue()); err != nil {
			return nil, err
		}
	}
	answer := rated(o.count, time.Since(start))
	answer["bytes"] = check.bytes
	return answer, nil
}

// newestOffset asks the partition leader for the last offset stored; -1 for an empty log.
func newestOffset(ctx context.Context, client api.APIClient, stream string) (int64, error) {
	response, err := client.FetchPartitionMetadata(ctx, &api.FetchPartitionMetadataRequest{Stream: stream})
	if err != nil {
		return 0, err
	}
	return response.GetMetadata().GetNewestOffset(), nil
}

// lbIntake publishes to the subject of the stream by plain NATS and waits until all is stored, or
// until the log has not grown for the idle time.
func lbIntake(o *options) (result, error) {
	conn, client, err := dial(o)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return intake(o, func() (int64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		newest, err := newestOffset(ctx, client, o.stream)
		return newest + 1, err
	})
}

// newRequest is the publish that is sent again and again, with a value of its own.
func newRequest(o *options) *api.PublishRequest {
	request := &api.PublishRequest{Stream: o.stream, Value: newValue(o.size), ExpectedOffset: -1}
	if o.policy == "all" {
		request.AckPolicy = api.AckPolicy_ALL
	}
	return request
}
