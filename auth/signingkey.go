package auth

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"

	"sluice/internal/secret"
	"sluice/internal/tenant"
)

// ParseSigningKey reads a private key on P-256 from PEM, as "PRIVATE KEY" (PKCS
// 8) or "EC PRIVATE KEY" (SEC 1); what stands before and behind it, such as
// "EC PARAMETERS", is passed over. The only error is tenant.ErrSigningKey.
func ParseSigningKey(text secret.Secret) (tenant.SigningKey, error) {
	rest := []byte(text.Reveal())
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return tenant.SigningKey{}, tenant.ErrSigningKey
		}
		switch block.Type {
		case "PRIVATE KEY":
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return tenant.SigningKey{}, tenant.ErrSigningKey
			}
			private, _ := key.(*ecdsa.PrivateKey) // nil is refused as another kind of key
			return tenant.NewSigningKey(private)
		case "EC PRIVATE KEY":
			private, err := x509.ParseECPrivateKey(block.Bytes)
			if err != nil {
				return tenant.SigningKey{}, tenant.ErrSigningKey
			}
			return tenant.NewSigningKey(private)
		}
	}
}
