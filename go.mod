module github.com/nodeproxy-io/nodeproxy

go 1.26.0
