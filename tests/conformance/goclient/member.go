package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	proto "github.com/liftbridge-io/liftbridge-api/v2/go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/binarylog"
	binlogpb "google.golang.org/grpc/binarylog/grpc_binarylog_v1"
	protobuf "google.golang.org/protobuf/proto"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
)

const (
	startPatience = 30 * time.Second
	leavePatience = 5 * time.Second
)

// tell prints a line at once, with the seconds of CLOCK_MONOTONIC.
func tell(word string, numbers string) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	fmt.Printf("%s %d.%06d %s\n", word, now.Sec, now.Nsec/1000, numbers)
}

// subscription is one call of Subscribe.
type subscription struct {
	number    uint64
	partition int32
	epoch     uint64
	isServed  bool
	isOver    bool
}

type place struct {
	partition int32
	offset    int64
}

// subscriptions is the sink of gRPC's binary log of Subscribe: the consumer of go-liftbridge shows
// neither its subscriptions nor their epochs. What a call receives is logged in the goroutine that
// then calls the handler.
type subscriptions struct {
	mu       sync.Mutex
	calls    map[uint64]*subscription
	received map[place][]*subscription
}

// Write notes a request, a message or the end of a call.
func (s *subscriptions) Write(entry *binlogpb.GrpcLogEntry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch entry.Type {
	case binlogpb.GrpcLogEntry_EVENT_TYPE_CLIENT_MESSAGE:
		request := &proto.SubscribeRequest{}
		if err := protobuf.Unmarshal(entry.GetMessage().Data, request); err != nil {
			return err
		}
		s.calls[entry.CallId] = &subscription{
			number: entry.CallId, partition: request.Partition, epoch: request.Consumer.GroupEpoch,
		}
	case binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_MESSAGE:
		call := s.calls[entry.CallId]
		if !call.isServed { // the handshake
			call.isServed = true
			tell("given", fmt.Sprint(call.partition))
			return nil
		}
		message := &proto.Message{}
		if err := protobuf.Unmarshal(entry.GetMessage().Data, message); err != nil {
			return err
		}
		at := place{call.partition, message.Offset}
		s.received[at] = append(s.received[at], call)
	case binlogpb.GrpcLogEntry_EVENT_TYPE_SERVER_TRAILER, binlogpb.GrpcLogEntry_EVENT_TYPE_CANCEL:
		call := s.calls[entry.CallId]
		if call != nil && call.isServed && !call.isOver {
			call.isOver = true // what was received before may still be handed over
			tell("revoked", fmt.Sprint(call.partition))
		}
	}
	return nil
}

// Close does nothing.
func (s *subscriptions) Close() error { return nil }

// take returns the subscription that received a message.
func (s *subscriptions) take(partition int32, offset int64) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := place{partition, offset}
	calls := s.received[at]
	if s.received[at] = calls[1:]; len(calls) == 1 {
		delete(s.received, at)
	}
	return calls[0]
}

// runMember reads a stream as a member of a group until SIGTERM, and prints what it is given and
// reads, as liftbridge_testkit.consumers.member does, with the group epoch and the number of the
// subscription behind each read. GRPC_BINARY_LOG_FILTER must be proto.API/Subscribe.
func runMember(servers, group, stream, name string) error {
	found := &subscriptions{calls: map[uint64]*subscription{}, received: map[place][]*subscription{}}
	binarylog.SetSink(found)
	var client lift.Client
	if err := patiently(startPatience, func() (err error) {
		// Fails as long as a broker in the metadata is away.
		client, err = lift.Connect(strings.Split(servers, ","))
		return err
	}); err != nil {
		return err
	}
	consumer, err := client.CreateConsumer(group, lift.ConsumerID(name),
		lift.AutoOffsetEarliest(), lift.AutoCheckpoint(200*time.Millisecond),
		lift.FetchAssignmentsInterval(func(timeout time.Duration) time.Duration { return timeout / 20 }))
	if err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	handler := func(message *lift.Message, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, time.Now().Format(time.RFC3339Nano), err)
			return
		}
		partition, offset := message.Partition(), message.Offset()
		from := found.take(partition, offset)
		tell("read", fmt.Sprint(partition, offset, offset, from.epoch, from.number))
	}
	if err := patiently(startPatience, func() error {
		return consumer.Subscribe(context.Background(), []string{stream}, handler)
	}); err != nil {
		return err
	}
	<-ended
	left := make(chan error, 1)
	go func() { left <- patiently(leavePatience, consumer.Close) }()
	select {
	case err := <-left:
		return err
	case <-time.After(2 * leavePatience):
		return nil // it left, and waits for ever for its own search for the coordinator
	}
}

// patiently calls until a call succeeds or the time is over.
func patiently(patience time.Duration, call func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := call(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
