package main

import (
	"context"
	"fmt"
	"time"
)

const (
	restartDelay = time.Second // how long a replica that ended stays away
	restart      = "restart"   // the event that ends it, of our own making
)

// watch keeps the replicas running, and tells what happens to them, until ctx ends.
func (d *demo) watch(ctx context.Context) error {
	if err := d.crew.startAll(); err != nil {
		return err
	}
	fmt.Println(d.crew.pids())
	fmt.Printf("Kill (-KILL), stop (-TERM), pause (-STOP, -CONT) any of them; Ctrl-C ends.\n\n")
	for {
		e, err := d.crew.next(ctx)
		if err != nil {
			break
		}
		if e.Event == restart {
			err = d.crew.start(e.Replica)
		}
		if err != nil {
			return err
		}
		d.tellOf(e)
	}
	fmt.Println("\nThe replicas are stopped, and the keys of this run are removed.")
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return d.crew.stopAll(stop)
}

func (d *demo) tellOf(e event) {
	what := ""
	switch e.Event {
	case leading:
		what = fmt.Sprintf("leads under epoch %d (kill -KILL %d)", d.crew.history.of(e.Replica).epoch, d.crew.pid(e.Replica))
	case stopped:
		what = "has ended its work"
	case refused:
		what = "had a write refused: " + e.Detail
	case exited:
		what = fmt.Sprintf("ended: %s; it starts again", e.Detail)
		time.AfterFunc(restartDelay, func() { d.crew.post(event{Replica: e.Replica, Event: restart}) })
	default:
		return
	}
	fmt.Printf("%s  %s %s\n", e.At.Format("15:04:05.000"), e.Replica, what)
}
