package bubble

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKeysExpireByTheBubblesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := Redis(t)
		rdb := client()
		ctx := t.Context()
		if err := rdb.Set(ctx, "k", "v", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if n := rdb.Exists(ctx, "k").Val(); n != 1 {
			t.Fatal("the key went before its time")
		}
		time.Sleep(time.Second)
		if n := rdb.Exists(ctx, "k").Val(); n != 0 {
			t.Fatal("the key outlived its time")
		}
	})
}

func TestSubscriptionsInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := Redis(t)
		rdb := client()
		sub := rdb.Subscribe(t.Context(), "c")
		defer sub.Close()
		messages := sub.Channel()
		synctest.Wait()
		if n := rdb.Publish(t.Context(), "c", "hello").Val(); n != 1 {
			t.Fatalf("Publish reached %d, want 1", n)
		}
		if m := <-messages; m.Payload != "hello" {
			t.Fatalf("got %q", m.Payload)
		}
	})
}
