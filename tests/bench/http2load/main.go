// Load for the echo service of liftbridge_testkit.grpc_echo: one line of JSON for each measurement.
//
//	http2load ADDRESS MODE COUNT SIZE [STREAMS]
//
// MODE is `ack` (one bidirectional stream, 2048 in flight), `stream` (one server stream) or
// `unary` (one call at a time). With STREAMS above 1 that many streams of one connection share the
// work.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

const inFlight = 2048

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(value.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	*value.(*[]byte) = data.Materialize()
	return nil
}

var stream = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ack(connection *grpc.ClientConn, count, size int) {
	call, err := connection.NewStream(context.Background(), stream, "/test.Echo/Ack")
	must(err)
	slots := make(chan struct{}, inFlight)
	message := make([]byte, size)
	go func() {
		for range count {
			slots <- struct{}{}
			must(call.SendMsg(message))
		}
		must(call.CloseSend())
	}()
	for range count {
		var answer []byte
		must(call.RecvMsg(&answer))
		<-slots
	}
}

func read(connection *grpc.ClientConn, count, size int) {
	call, err := connection.NewStream(context.Background(), stream, "/test.Echo/Stream")
	must(err)
	request := make([]byte, 12)
	binary.BigEndian.PutUint64(request, uint64(count))
	binary.BigEndian.PutUint32(request[8:], uint32(size))
	must(call.SendMsg(request))
	must(call.CloseSend())
	for range count {
		var answer []byte
		must(call.RecvMsg(&answer))
	}
}

func unary(connection *grpc.ClientConn, count, size int) []time.Duration {
	request := make([]byte, size)
	delays := make([]time.Duration, 0, count)
	for range count {
		begin := time.Now()
		var answer []byte
		must(connection.Invoke(context.Background(), "/test.Echo/Unary", request, &answer))
		delays = append(delays, time.Since(begin))
	}
	sort.Slice(delays, func(i, j int) bool { return delays[i] < delays[j] })
	return delays
}

func main() {
	address, mode := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	size, err := strconv.Atoi(os.Args[4])
	must(err)
	streams := 1
	if len(os.Args) > 5 {
		streams, err = strconv.Atoi(os.Args[5])
		must(err)
	}
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	must(err)
	unary(connection, 1, size)
	result := map[string]any{"mode": mode, "count": count, "size": size, "streams": streams}
	begin := time.Now()
	if mode == "unary" {
		delays := unary(connection, count, size)
		result["p50_us"] = float64(delays[count/2].Nanoseconds()) / 1e3
		result["p99_us"] = float64(delays[count*99/100].Nanoseconds()) / 1e3
	} else {
		work := ack
		if mode == "stream" {
			work = read
		}
		var group sync.WaitGroup
		for range streams {
			group.Go(func() { work(connection, count/streams, size) })
		}
		group.Wait()
	}
	result["seconds"] = time.Since(begin).Seconds()
	must(json.NewEncoder(os.Stdout).Encode(result))
	must(connection.Close())
}
