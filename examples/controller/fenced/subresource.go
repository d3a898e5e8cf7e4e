package fenced

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Status returns SubResource("status").
func (c *Client) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource returns a client that writes in the current term only. It does not stamp: the API server ignores annotations
// there, in most resources. Put the epoch into the status, and fence that.
func (c *Client) SubResource(name string) client.SubResourceClient {
	return &subResource{c.Client.SubResource(name), c}
}

type subResource struct {
	client.SubResourceClient
	of *Client
}

func (s *subResource) Create(ctx context.Context, obj, sub client.Object, opts ...client.SubResourceCreateOption) error {
	if _, err := s.of.Term(ctx); err != nil {
		return err
	}
	return s.SubResourceClient.Create(ctx, obj, sub, opts...)
}

func (s *subResource) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	if _, err := s.of.Term(ctx); err != nil {
		return err
	}
	return s.SubResourceClient.Update(ctx, obj, opts...)
}

func (s *subResource) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if _, err := s.of.Term(ctx); err != nil {
		return err
	}
	return s.SubResourceClient.Patch(ctx, obj, patch, opts...)
}

func (s *subResource) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if _, err := s.of.Term(ctx); err != nil {
		return err
	}
	return s.SubResourceClient.Apply(ctx, obj, opts...)
}
