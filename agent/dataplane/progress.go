package dataplane

import "context"

type progressKey struct{}

// WithProgress returns a context whose work calls progress whenever a part of it
// has ended, well or not. So what takes long can be told from what is stuck.
func WithProgress(ctx context.Context, progress func()) context.Context {
	return context.WithValue(ctx, progressKey{}, progress)
}

// Progress says that a part of the work of ctx has ended, such as a program.
// Implementations call it at least once a minute where they can.
func Progress(ctx context.Context) {
	if progress, ok := ctx.Value(progressKey{}).(func()); ok {
		progress()
	}
}
