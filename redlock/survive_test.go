package redlock_test

import (
	"testing"
	"time"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestFlushedScriptsAreNoMatter(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		m := s.manager(t, redlock.Config{Expiry: 2 * time.Second})
		l := m.NewLock(redistest.Key(t), redlock.WithAutoRenew(20*time.Millisecond), redlock.WithMetadata("m"))
		flush := func() {
			for _, srv := range s.servers {
				must(t, srv.Client().ScriptFlush(t.Context()).Err())
			}
		}
		for range 3 {
			flush()
			must(t, l.TryLock(t.Context()))
			flush()
			time.Sleep(60 * time.Millisecond)
			flush()
			must(t, l.Extend(t.Context(), 2*time.Second))
			flush()
			if _, held, err := m.Holder(t.Context(), l.Key()); !held || err != nil {
				t.Error(held, err)
			}
			flush()
			must(t, l.Unlock(t.Context()))
		}
	})
}

func TestNodeThatRestartsEmptyGetsTheLeaseBack(t *testing.T) {
	// Given a lease that is renewed,
	s := newSite(t, 3)
	l := s.manager(t, redlock.Config{Expiry: 5 * time.Second}).NewLock(redistest.Key(t), redlock.WithAutoRenew(100*time.Millisecond), redlock.WithMetadata("m"))
	must(t, l.TryLock(t.Context()))
	value := s.everywhere(t, l.Key())
	// when one server comes back empty,
	s.servers[1].RestartEmpty()
	// then the lease is soon there again, as it was, with a TTL,
	eventually(t, 3*time.Second, "the lease is back", func() bool { return s.at(t, 1, l.Key()) == value })
	if ttl := s.servers[1].Client().PTTL(t.Context(), l.Key()).Val(); ttl < 3*time.Second || ttl > 5*time.Second {
		t.Errorf("its TTL is %v", ttl)
	}
	// and the holder noticed nothing; then another server may go.
	s.servers[0].RestartEmpty()
	eventually(t, 3*time.Second, "the lease is back", func() bool { return s.at(t, 0, l.Key()) == value })
	if !l.Held() || isLost(l) {
		t.Error("the lease is lost")
	}
	must(t, l.Unlock(t.Context()))
	s.wantFree(t, l.Key(), time.Second)
}

func TestMajorityThatRestartsEmptyIsALoss(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		l := s.manager(t, redlock.Config{Expiry: 5 * time.Second}).NewLock(redistest.Key(t), redlock.WithAutoRenew(100*time.Millisecond))
		must(t, l.TryLock(t.Context()))
		for _, srv := range s.servers[:len(s.servers)/2+1] {
			srv.RestartEmpty()
		}
		select {
		case <-l.Lost():
		case <-time.After(2 * time.Second):
			t.Fatal("the loss is not told")
		}
		s.wantFree(t, l.Key(), time.Second) // nothing is created anew, and the minority is undone
	})
}

func TestServerThatIsStoppedForAWhileIsNoLoss(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		l := s.manager(t, redlock.Config{Expiry: 3 * time.Second, OperationTimeout: 100 * time.Millisecond}).NewLock(redistest.Key(t), redlock.WithAutoRenew(50*time.Millisecond))
		must(t, l.TryLock(t.Context()))
		for _, srv := range s.servers {
			srv.Stop()
		}
		time.Sleep(600 * time.Millisecond)
		for _, srv := range s.servers {
			srv.Continue()
		}
		time.Sleep(200 * time.Millisecond)
		if !l.Held() || isLost(l) {
			t.Fatal("the lease is lost")
		}
		must(t, l.Unlock(t.Context()))
		s.wantFree(t, l.Key(), time.Second)
	})
}
