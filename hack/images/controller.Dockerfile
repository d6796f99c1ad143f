# Builds the image of make images with a container engine, from the repository's root:
#
#   docker build -f hack/images/controller.Dockerfile --build-arg VERSION=v0.1.0 -t nodeproxy-controller:v0.1.0 \
#     --build-arg GO_IMAGE=golang:1.26-bookworm@sha256:... .
#
# The base image must be named by digest: docs/install.md shows how. No file of it is in the
# result: go.sum pins the modules of the program.
ARG GO_IMAGE
FROM --platform=$BUILDPLATFORM $GO_IMAGE AS program
ARG GO_IMAGE
RUN case "$GO_IMAGE" in *@sha256:*) ;; *) echo "GO_IMAGE is \"$GO_IMAGE\": name it with its digest, as in golang:1.26-bookworm@sha256:..." >&2; exit 1 ;; esac
ARG TARGETARCH
ARG VERSION=unknown
WORKDIR /source
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /nodeproxy-controller ./cmd/nodeproxy-controller

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="nodeproxy-controller" \
      org.opencontainers.image.description="Renders Services into the objects that nodeproxy's agents program" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.source="https://github.com/nodeproxy-io/nodeproxy"
COPY --from=program /nodeproxy-controller /nodeproxy-controller
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/nodeproxy-controller"]
