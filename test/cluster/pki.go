package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// pki is a cluster's certificate authority. Its files are in one directory.
type pki struct {
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

// newPKI makes the authority, the API server's certificate for the given
// addresses and the key of service account tokens.
func newPKI(dir string, addresses []net.IP) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p := &pki{dir: dir, key: key}
	p.ca = &x509.Certificate{
		Subject:               pkix.Name{CommonName: "local cluster"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := p.issue("ca", p.ca, key); err != nil {
		return nil, err
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: addresses,
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := p.create("serving", serving); err != nil {
		return nil, err
	}
	return p, p.create("service-accounts", &x509.Certificate{Subject: pkix.Name{CommonName: "service accounts"}})
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// create makes a key and a certificate for it.
func (p *pki) create(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	return p.issue(name, template, key)
}

// issue signs a certificate and writes it beside its key.
func (p *pki) issue(name string, template *x509.Certificate, key *ecdsa.PrivateKey) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(1, 0, 0)
	cert, err := x509.CreateCertificate(rand.Reader, template, p.ca, key.Public(), p.key)
	if err != nil {
		return fmt.Errorf("signing the certificate %s: %w", name, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(p.path(name+".crt"), "CERTIFICATE", cert); err != nil {
		return err
	}
	return writePEM(p.path(name+".key"), "PRIVATE KEY", private)
}

func writePEM(path, kind string, content []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600)
}

// client makes a key and a certificate for a client of the API server or of
// kubelets.
func (p *pki) client(name, user string, groups ...string) error {
	return p.create(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// kubeconfig writes the access of a user to server and returns its path.
func (p *pki) kubeconfig(name, server, user string, groups ...string) (string, error) {
	if err := p.client("client-"+name, user, groups...); err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	cluster, auth := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo()
	cluster.Server = server
	var err error
	for path, data := range map[string]*[]byte{
		"ca.crt":                  &cluster.CertificateAuthorityData,
		"client-" + name + ".crt": &auth.ClientCertificateData,
		"client-" + name + ".key": &auth.ClientKeyData,
	} {
		if *data, err = os.ReadFile(p.path(path)); err != nil {
			return "", err
		}
	}
	config.Clusters["local"], config.AuthInfos[name] = cluster, auth
	config.Contexts["local"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: name}
	config.CurrentContext = "local"
	path := p.path(name + ".kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}
