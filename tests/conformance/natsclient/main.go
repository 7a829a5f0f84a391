// Publishes to streams with `ack_reply` as programs of NATS and JetStream do, and prints a line for each check.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const wait = 30 * time.Second

func check(name string, err error) {
	if err != nil {
		fmt.Printf("failed %s: %v\n", name, err)
		os.Exit(1)
	}
	fmt.Printf("ok %s\n", name)
}

func expect(stream string, seq uint64, gotStream string, gotSeq uint64) error {
	if gotStream != stream || gotSeq != seq {
		return fmt.Errorf("%s %d, not %s %d", gotStream, gotSeq, stream, seq)
	}
	return nil
}

// connect with the inboxes of a publisher whose permissions give it a prefix of its own, or with the usual ones.
func connect(url, prefix string) *nats.Conn {
	options := []nats.Option{}
	if prefix != "" {
		options = append(options, nats.CustomInboxPrefix(prefix))
	}
	nc, err := nats.Connect(url, options...)
	check("connect "+prefix, err)
	return nc
}

// request as `nats req` does.
func request(nc *nats.Conn, stream string, seq uint64) error {
	answer, err := nc.Request(stream, []byte("v"), wait)
	if err != nil {
		return err
	}
	var told struct {
		Stream string
		Seq    uint64
		Offset uint64
	}
	if err := json.Unmarshal(answer.Data, &told); err != nil {
		return err
	}
	if told.Offset != seq-1 {
		return fmt.Errorf("offset %d", told.Offset)
	}
	return expect(stream, seq, told.Stream, told.Seq)
}

// publishes by the first API of nats.go, the context of a connection.
func legacy(nc *nats.Conn, stream string, seq uint64) error {
	js, err := nc.JetStream(nats.MaxWait(wait))
	if err != nil {
		return err
	}
	ack, err := js.PublishMsg(&nats.Msg{Subject: stream, Data: []byte("v")}, nats.MsgId("a"))
	if err != nil {
		return err
	}
	if ack.Duplicate {
		return errors.New("a duplicate")
	}
	return expect(stream, seq, ack.Stream, ack.Sequence)
}

func many(nc *nats.Conn, stream string, seq uint64, count int) error {
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	var futures []nats.PubAckFuture
	for n := 0; n < count; n++ {
		future, err := js.PublishAsync(stream, []byte("v"))
		if err != nil {
			return err
		}
		futures = append(futures, future)
	}
	for n, future := range futures {
		select {
		case ack := <-future.Ok():
			if err := expect(stream, seq+uint64(n), ack.Stream, ack.Sequence); err != nil {
				return err
			}
		case err := <-future.Err():
			return err
		case <-time.After(wait):
			return errors.New("no ack")
		}
	}
	return nil
}

// publishes by the package jetstream.
func modern(nc *nats.Conn, stream string, seq uint64) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	ack, err := js.Publish(ctx, stream, []byte("v"))
	if err != nil {
		return err
	}
	return expect(stream, seq, ack.Stream, ack.Sequence)
}

func refused(nc *nats.Conn, stream string) error {
	js, err := nc.JetStream(nats.MaxWait(wait))
	if err != nil {
		return err
	}
	_, err = js.Publish(stream, []byte("v"))
	var told *nats.APIError
	if !errors.As(err, &told) {
		return fmt.Errorf("not refused: %v", err)
	}
	if told.Code != 503 || told.ErrorCode != 10077 || told.Description != "readonly partition: 0" {
		return fmt.Errorf("%+v", told)
	}
	return nil
}

func main() {
	url, stream, readonly := os.Args[1], os.Args[2], os.Args[3]
	nc := connect(url, "")
	check("request", request(nc, stream, 1))
	check("publish with a message id", legacy(nc, stream, 2))
	check("publish with the same message id", legacy(nc, stream, 3))
	check("publish many", many(nc, stream, 4, 500))
	check("publish by the package", modern(nc, stream, 504))
	check("refusal", refused(nc, readonly))
	own := connect(url, "inbox.of.me")
	check("request from another inbox", request(own, stream, 505))
	check("publish from another inbox", modern(own, stream, 506))
}
