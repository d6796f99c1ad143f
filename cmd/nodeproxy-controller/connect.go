package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// reachTimeout is how long an API server may take to answer at the start.
const reachTimeout = 5 * time.Second

// connect returns how to reach the API server.
func connect(ctx context.Context, o options, logger logr.Logger) (*rest.Config, error) {
	cfg, err := loadConfig(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // the API server's own priority and fairness is the limit
	if len(o.apiServers) == 0 {
		if err := reach(ctx, cfg); err != nil {
			return nil, fmt.Errorf("the API server %s does not answer; check its address, or name another with --api-server: %w", cfg.Host, err)
		}
		return cfg, nil
	}
	var errs []error
	for _, server := range o.apiServers {
		candidate, err := withServer(cfg, server)
		if err == nil {
			err = reach(ctx, candidate)
		}
		if err == nil {
			return candidate, nil
		}
		logger.Info("API server did not answer, trying the next", "apiServer", server, "err", err)
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
	}
	return nil, fmt.Errorf("no --api-server answers: %w", errors.Join(errs...))
}

func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("this is not a pod, so say how to reach the API server with --kubeconfig FILE")
		}
		if err != nil {
			return nil, fmt.Errorf("use the pod's service account: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

// withServer overrides the host. The certificate may be only for the name of
// the original host, so that is what it is still checked against.
func withServer(cfg *rest.Config, server string) (*rest.Config, error) {
	out := rest.CopyConfig(cfg)
	out.Host = server
	out.APIPath = ""
	original, _, err := rest.DefaultServerUrlFor(cfg) // a kubeconfig may leave the scheme out
	if err != nil {
		return nil, fmt.Errorf("parse the API server %q of the kubeconfig: %w", cfg.Host, err)
	}
	if out.ServerName == "" && !out.Insecure {
		out.ServerName = original.Hostname()
	}
	return out, nil
}

// reach tells whether anything that speaks HTTP, and whose certificate is
// trusted, answers; whether it is ready or lets us in shows later.
func reach(ctx context.Context, cfg *rest.Config) error {
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("readyz").String(), nil)
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
