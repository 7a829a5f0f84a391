// Command loadgen drives a Liftbridge broker or a NATS JetStream server with one kind of work and
// prints what it measured as one JSON object. tests/bench/run.py starts it; it also works by hand.
//
// Both systems are driven by the same process shape: one client connection, the same values, the
// same window of unacknowledged messages, the same clock. Every command verifies what it counts
// (ack order, offset order, payload bytes), because a fast wrong answer is not a result.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"time"
)

// options are the flags shared by all commands; each command reads the ones it needs.
type options struct {
	server   string        // host:port of the Liftbridge broker
	nats     string        // URL of the NATS server
	stream   string        // stream name (Liftbridge and JetStream)
	subject  string        // subject of the stream
	count    int           // messages, or streams for lb-create
	seconds  float64       // stop after this time even when count is not reached; 0 = no limit
	size     int           // bytes of a value
	window   int           // messages in flight for each publishing stream
	streams  int           // concurrent PublishAsync calls
	conns    int           // connections these calls are spread over
	rate     float64       // messages a second, 0 = as fast as possible
	mode     string        // variant of the command
	parallel int           // concurrent requests of lb-create
	idle     time.Duration // give up when nothing arrives for this long
	replicas int           // replicas of a stream that is created
	policy   string        // acks of Liftbridge: leader or all
	grpcWin  int           // initial HTTP/2 window of the client in bytes, 0 = grpc-go's default
}

type command struct {
	help string
	run  func(*options) (result, error)
}

// result is what a command prints: flat, so that the runner can store it as it is.
type result map[string]any

func commands() map[string]command {
	return map[string]command{
		"lb-create":    {"create COUNT streams STREAM-0.. (or just STREAM when count is 1)", lbCreate},
		"lb-publish":   {"PublishAsync, -streams calls of -window messages in flight", lbPublish},
		"lb-latency":   {"one message at a time, -mode async|unary; -rate paces it", lbLatency},
		"lb-deliver":   {"publish at -rate to a subscriber: time from due to delivered", lbDeliver},
		"lb-replay":    {"Subscribe from the beginning, COUNT messages", lbReplay},
		"lb-intake":    {"plain NATS publish into a stream, wait until stored", lbIntake},
		"js-create":    {"create the JetStream stream (file storage, -replicas)", jsCreate},
		"js-publish":   {"asynchronous publish with -window in flight", jsPublish},
		"js-latency":   {"one message at a time; -rate paces it", jsLatency},
		"js-deliver":   {"publish at -rate to a subscriber: time from due to delivered", jsDeliver},
		"js-replay":    {"read from the beginning, -mode ordered|push|pull", jsReplay},
		"js-intake":    {"plain NATS publish into a stream, wait until stored", jsIntake},
		"nats-publish": {"core publish", natsPublish},
		"nats-count":   {"subscribe to SUBJECT, print ready, count until stdin closes", natsCount},
	}
}

func main() {
	// The heap holds a window of messages only; collecting it less often takes the client's
	// garbage collector out of the measurement, for every system alike.
	debug.SetGCPercent(400)
	all := commands()
	if len(os.Args) < 2 || all[os.Args[1]].run == nil {
		usage(all)
		os.Exit(2)
	}
	opts := parse(os.Args[1], os.Args[2:])
	before := cpuSeconds()
	answer, err := all[os.Args[1]].run(opts)
	if err != nil {
		fmt.Fprintf(os.Stderr, "loadgen %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
	answer["command"] = os.Args[1]
	answer["client_cpu_seconds"] = cpuSeconds() - before
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func usage(all map[string]command) {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintln(os.Stderr, "usage: loadgen COMMAND [flags]")
	for _, name := range names {
		fmt.Fprintf(os.Stderr, "  %-13s %s\n", name, all[name].help)
	}
}

func parse(name string, args []string) *options {
	o := &options{}
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	flags.StringVar(&o.server, "server", "127.0.0.1:9292", "Liftbridge broker")
	flags.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "NATS server")
	flags.StringVar(&o.stream, "stream", "bench", "stream name")
	flags.StringVar(&o.subject, "subject", "bench", "subject")
	flags.IntVar(&o.count, "count", 1_000_000, "messages")
	flags.Float64Var(&o.seconds, "seconds", 0, "time limit")
	flags.IntVar(&o.size, "size", 256, "bytes of a value")
	flags.IntVar(&o.window, "window", 1024, "messages in flight, each stream")
	flags.IntVar(&o.streams, "streams", 1, "PublishAsync calls")
	flags.IntVar(&o.conns, "conns", 1, "connections")
	flags.Float64Var(&o.rate, "rate", 0, "messages a second")
	flags.StringVar(&o.mode, "mode", "", "variant")
	flags.IntVar(&o.parallel, "parallel", 1, "concurrent requests")
	flags.DurationVar(&o.idle, "idle", 10*time.Second, "give up after this silence")
	flags.IntVar(&o.replicas, "replicas", 1, "replicas of a created stream")
	flags.StringVar(&o.policy, "policy", "leader", "acks: leader or all")
	flags.IntVar(&o.grpcWin, "grpc-window", 4<<20, "initial HTTP/2 window, 0 = library default")
	if err := flags.Parse(args); err != nil {
		os.Exit(2)
	}
	return o
}
