package main

import (
	"encoding/binary"
	"fmt"
	"math/rand"
	"slices"
	"syscall"
	"time"
)

// cpuSeconds is the user and system time this process has used.
func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

// newValue makes a payload that does not compress: the first 8 bytes hold the sequence, the rest
// is the same for every run, so that a reader can check all of it.
func newValue(size int) []byte {
	value := make([]byte, max(size, 8))
	rand.New(rand.NewSource(1)).Read(value)
	return value
}

func stamp(value []byte, sequence uint64) { binary.LittleEndian.PutUint64(value, sequence) }

func sequenceOf(value []byte) uint64 { return binary.LittleEndian.Uint64(value) }

// checker verifies a replay: payload length and tail of every message, order of the sequences.
type checker struct {
	want  []byte
	next  uint64
	bytes int64
}

func newChecker(size int) *checker { return &checker{want: newValue(size)} }

// add checks one payload that is expected to carry the next sequence.
func (c *checker) add(value []byte) error {
	if len(value) != len(c.want) || string(value[8:]) != string(c.want[8:]) {
		return fmt.Errorf("message %d: payload differs from what was published", c.next)
	}
	if got := sequenceOf(value); got != c.next {
		return fmt.Errorf("message %d: carries sequence %d", c.next, got)
	}
	c.next++
	c.bytes += int64(len(value))
	return nil
}

// rated fills in count, seconds and rate.
func rated(count int, elapsed time.Duration) result {
	return result{
		"count":   count,
		"seconds": elapsed.Seconds(),
		"rate":    float64(count) / elapsed.Seconds(),
	}
}

// percentiles adds latency figures in microseconds; it sorts samples.
func percentiles(into result, samples []time.Duration) {
	if len(samples) == 0 {
		return
	}
	slices.Sort(samples)
	at := func(p float64) float64 {
		index := min(int(p*float64(len(samples))), len(samples)-1)
		return float64(samples[index]) / 1e3
	}
	into["p50_us"] = at(0.50)
	into["p99_us"] = at(0.99)
	into["p999_us"] = at(0.999)
	into["max_us"] = at(1)
}

// pacer spreads messages over time. It never skips: a late message is sent at once, so the rate
// is met on average as long as the sender can.
type pacer struct {
	start time.Time
	gap   float64 // nanoseconds between messages, 0 = no pacing
}

func newPacer(rate float64) *pacer {
	p := &pacer{start: time.Now()}
	if rate > 0 {
		p.gap = 1e9 / rate
	}
	return p
}

// due is when message i should be sent.
func (p *pacer) due(i int) time.Time {
	return p.start.Add(time.Duration(float64(i) * p.gap))
}

// wait sleeps until message i is due, but only when it is more than a millisecond away: shorter
// sleeps cost more than they smooth.
func (p *pacer) wait(i int) {
	if p.gap == 0 || i&63 != 0 {
		return
	}
	if ahead := time.Until(p.due(i)); ahead > time.Millisecond {
		time.Sleep(ahead)
	}
}

// measureOneAtATime runs call count times, each after the one before was answered. Without a rate
// the loop is closed: there is no schedule to fall behind, and the figures are service times. With
// a rate latency counts from when a call was due, which corrects for coordinated omission.
func measureOneAtATime(o *options, call func(i int) error) (result, error) {
	samples := make([]time.Duration, 0, o.count)
	warm := min(o.count/10, 1000)
	for i := range warm {
		if err := call(i); err != nil {
			return nil, err
		}
	}
	pace := newPacer(o.rate)
	start := time.Now()
	for i := range o.count {
		from := time.Now()
		if o.rate > 0 {
			from = pace.due(i)
			time.Sleep(time.Until(from))
		}
		if err := call(warm + i); err != nil {
			return nil, err
		}
		samples = append(samples, time.Since(from))
		if o.seconds > 0 && time.Since(start).Seconds() > o.seconds {
			break
		}
	}
	answer := rated(len(samples), time.Since(start))
	answer["warm_up"] = warm
	answer["open_loop"] = o.rate > 0
	percentiles(answer, samples)
	return answer, nil
}
