// Package fenced has a controller-runtime client for leaders: it stamps what it writes with the epoch of the term that it
// is written in, so that the API server can refuse what a leader of old writes. It is made to be copied.
//
// The stamp is half of it. The other half is the ValidatingAdmissionPolicy in deploy/base/fence.yaml, which compares it
// with the stored one; without it a stamp only tells who wrote.
package fenced

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// EpochAnnotation has the epoch of the term in which an object was written last.
const EpochAnnotation = "redlock.example/epoch"

var (
	// ErrNotLeading says that there is no term to write in. Nothing was sent.
	ErrNotLeading = errors.New("not leading")

	// ErrStale says that the object at hand bears a higher epoch: another leads. Nothing was sent. What the API server
	// refuses, because the object there does, is Forbidden.
	ErrStale = errors.New("a higher epoch has written")
)

// Client reads as any client does, and writes in the current term only. What sends an object or a part of it (Create,
// Update, Patch, Apply) sends the epoch along. Delete and subresources send none: they are refused when not
// leading, but no server can tell that one comes late; see deploy/base/fence.yaml for what to do instead.
type Client struct {
	client.Client
	epoch func(context.Context) (epoch uint64, leading bool)
}

// New returns a client that writes through c. epoch tells the epoch of the current term: election.EpochFrom does for a
// context of OnStartedLeading, and the Epoch of a resourcelock.Lock where it is not 0.
func New(c client.Client, epoch func(context.Context) (epoch uint64, leading bool)) *Client {
	return &Client{c, epoch}
}

// Term returns the epoch of the current term, or ErrNotLeading.
func (c *Client) Term(ctx context.Context) (uint64, error) {
	epoch, leading := c.epoch(ctx)
	if !leading {
		return 0, ErrNotLeading
	}
	return epoch, nil
}

// Create stamps obj and creates it.
func (c *Client) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := c.stamp(ctx, obj); err != nil {
		return err
	}
	return c.Client.Create(ctx, obj, opts...)
}

// Update stamps obj and updates it.
func (c *Client) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if err := c.stamp(ctx, obj); err != nil {
		return err
	}
	return c.Client.Update(ctx, obj, opts...)
}

// Patch stamps the patch, which must not be a JSON patch: that has no place for an annotation.
func (c *Client) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	epoch, err := c.Term(ctx)
	if err != nil {
		return err
	}
	if err := mayWrite(obj, epoch); err != nil {
		return err
	}
	stamped, err := stampedPatch(obj, patch, epoch)
	if err != nil {
		return err
	}
	return c.Client.Patch(ctx, obj, stamped, opts...)
}

// Apply stamps what is applied. obj has the server's answer afterwards.
func (c *Client) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	epoch, err := c.Term(ctx)
	if err != nil {
		return err
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	fields, err := stampedFields(data, epoch)
	if err != nil {
		return err
	}
	stamped := &unstructured.Unstructured{Object: fields}
	if err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(stamped), opts...); err != nil {
		return err
	}
	if data, err = json.Marshal(stamped.Object); err != nil {
		return err
	}
	return json.Unmarshal(data, obj)
}

// Delete deletes obj. It is not fenced.
func (c *Client) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if _, err := c.Term(ctx); err != nil {
		return err
	}
	return c.Client.Delete(ctx, obj, opts...)
}

// DeleteAllOf deletes all that match. It is not fenced.
func (c *Client) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	if _, err := c.Term(ctx); err != nil {
		return err
	}
	return c.Client.DeleteAllOf(ctx, obj, opts...)
}

// stamp puts the epoch of the current term on obj.
func (c *Client) stamp(ctx context.Context, obj client.Object) error {
	epoch, err := c.Term(ctx)
	if err != nil {
		return err
	}
	if err := mayWrite(obj, epoch); err != nil {
		return err
	}
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[EpochAnnotation] = strconv.FormatUint(epoch, 10)
	obj.SetAnnotations(annotations)
	return nil
}

// EpochOf returns the epoch that obj bears, 0 if none.
func EpochOf(obj client.Object) (uint64, error) {
	s := obj.GetAnnotations()[EpochAnnotation]
	if s == "" {
		return 0, nil
	}
	epoch, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("annotation %s of %s is %q: not an epoch", EpochAnnotation, client.ObjectKeyFromObject(obj), s)
	}
	return epoch, nil
}

// mayWrite spares the API server what it would refuse.
func mayWrite(obj client.Object, epoch uint64) error {
	stored, err := EpochOf(obj)
	if err == nil && stored > epoch {
		err = fmt.Errorf("%s bears epoch %d, and this term has %d: %w", client.ObjectKeyFromObject(obj), stored, epoch, ErrStale)
	}
	return err
}

// stampedPatch returns the patch with the epoch in it. It is there even where obj bears it already, and a patch would
// leave it out: the stored object may bear another by now.
func stampedPatch(obj client.Object, patch client.Patch, epoch uint64) (client.Patch, error) {
	switch patch.Type() {
	case types.MergePatchType, types.StrategicMergePatchType, types.ApplyPatchType:
	default:
		return nil, fmt.Errorf("a patch of type %s cannot be stamped with an epoch: use a merge patch", patch.Type())
	}
	data, err := patch.Data(obj)
	if err != nil {
		return nil, err
	}
	fields, err := stampedFields(data, epoch)
	if err != nil {
		return nil, err
	}
	if data, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	return client.RawPatch(patch.Type(), data), nil
}

func stampedFields(data []byte, epoch uint64) (map[string]any, error) {
	fields := make(map[string]any)
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	err := unstructured.SetNestedField(fields, strconv.FormatUint(epoch, 10), "metadata", "annotations", EpochAnnotation)
	return fields, err
}
