#!/bin/sh
# Makes the certificates of the tests: an authority, a member at 127.0.0.1, and a client. They are
# worth nothing elsewhere, and valid for a hundred years.
set -eu
cd "$(dirname "$0")"
days=36500
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days $days \
	-subj "/O=rallypoint tests" -keyout ca.key -out ca.pem \
	-addext "basicConstraints=critical,CA:TRUE"
for name in member client; do
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
		-subj "/O=rallypoint tests" -keyout $name.key -out $name.csr
	printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' > $name.ext
	openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days $days \
		-extfile $name.ext -out $name.pem
	rm $name.csr $name.ext
done
rm ca.key ca.srl
