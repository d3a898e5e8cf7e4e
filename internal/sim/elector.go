package sim

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/election"
)

// elector is a candidate that runs election.Elector, and now and then steps down, stops and comes back, or
// crashes, until ctx ends.
func (w *world) elector(ctx context.Context, candidate int) {
	for life := 1; ctx.Err() == nil; life++ {
		p := w.start(candidate, life)
		p.campaign(ctx)
		if p.dead.Load() {
			p.close()
		} else {
			p.end()
		}
		sleep(ctx, p.upTo(w.plan.ttl/2))
	}
}

// campaign is the life of an elector.
func (p *process) campaign(ctx context.Context) {
	e, err := election.New(p.election())
	if err != nil {
		panic(err) // the plan asks for what cannot be
	}
	p.mu.Lock()
	p.elector = e
	p.mu.Unlock()
	run, stop := context.WithCancel(ctx)
	defer stop()
	ran := make(chan error, 1)
	go func() { ran <- e.Run(run) }()

	ttl := p.w.plan.ttl
	for end := time.Now().Add(ttl/2 + p.upTo(4*ttl)); time.Now().Before(end); {
		sleep(ctx, min(time.Until(end), ttl/4+p.upTo(2*ttl)))
		if ctx.Err() != nil || !p.w.faulty() {
			break
		}
		if e.IsLeader() && p.draw(2) == 0 {
			p.stepDown(ctx, e)
		}
	}
	switch {
	case !p.w.faulty():
		<-ctx.Done()
	case p.draw(2) == 0:
		p.crash()
	default:
		p.note("is stopped")
	}
	stop()
	err = <-ran
	p.w.judge.ran(p, err)
}

func (p *process) election() election.Config {
	plan := p.w.plan
	cfg := election.Config{
		Manager:         p.manager,
		Name:            electionName,
		Identity:        p.name,
		LeaseDuration:   plan.ttl,
		RenewDeadline:   plan.ttl * 2 / 3,
		RetryPeriod:     plan.renewal,
		ReleaseOnCancel: true,
		QuorumFencing:   plan.agreed,
		Logger:          p.logger(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: p.lead,
			OnStoppedLeading: func() { p.w.judge.stopped(p) },
		},
	}
	if plan.floor && plan.fenced() {
		cfg.FenceFloor = p.w.judge.floor
	}
	return cfg
}

// lead is the work of one term: mostly until ctx ends, sometimes longer, sometimes less.
func (p *process) lead(ctx context.Context) {
	epoch, _ := election.EpochFrom(ctx)
	p.note("leads, epoch %d", epoch)
	t := &tenure{process: p, began: time.Now().Add(-3 * p.w.plan.timeout), fence: epoch, term: ctx}
	t.holds = func() bool { return !t.stopped || ctx.Err() == nil }
	p.w.judge.entered(t)
	until, why := ctx, p.draw(8)
	if why == 0 { // it ends by itself
		short, cancel := context.WithTimeout(ctx, 1+p.upTo(p.w.plan.ttl))
		defer cancel()
		until = short
	}
	select {
	case <-until.Done():
		p.note("has to stop: %v", context.Cause(until))
	case <-p.w.overdue:
	}
	if why < 4 {
		time.Sleep(p.upTo(p.w.plan.ttl))
	}
	p.note("has ended its work")
	p.w.judge.returned(t)
}

func (p *process) stepDown(ctx context.Context, e *election.Elector) {
	p.note("is to step down")
	err := e.StepDown(ctx)
	p.note("has stepped down: %v", err)
	if err == nil {
		p.w.judge.steppedDown(p)
	} else if !errors.Is(err, election.ErrLost) && !errors.Is(err, election.ErrNotLeading) && ctx.Err() == nil {
		p.w.judge.report("%s: StepDown says %v", p.name, err)
	}
}
