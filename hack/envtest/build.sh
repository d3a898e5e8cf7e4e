#!/usr/bin/env bash
# Builds kube-apiserver and etcd, as pinned in go.mod here, for controller-runtime's envtest, and prints the folder that
# has them. They are kept outside the repository by version, and built only once; KUBEBUILDER_ASSETS, if set, is
# taken instead. (kubectl is not needed: envtest knows a path for it and never starts it.)
set -euo pipefail
cd "$(dirname "$0")"

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
	for binary in kube-apiserver etcd; do
		[ -x "$KUBEBUILDER_ASSETS/$binary" ] || { echo "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no $binary" >&2; exit 1; }
	done
	echo "$KUBEBUILDER_ASSETS"
	exit 0
fi

. ./versions.sh
cache=${XDG_CACHE_HOME:-$HOME/.cache}/go-redlock/envtest
dir=$cache/kubernetes-$kubernetes-etcd-$etcd-$($GO env GOOS)-$($GO env GOARCH)
if [ -x "$dir/kube-apiserver" ] && [ -x "$dir/etcd" ]; then
	echo "$dir"
	exit 0
fi

mkdir -p "$cache"
building=$(mktemp -d "$cache/.building-XXXXXX")
trap 'rm -rf "$building"' EXIT

build() { # name, package, linker flags
	echo "building $1 (once; kube-apiserver takes many minutes)" >&2
	nice -n 10 "$GO" build -o "$building/$1" -ldflags "$3" "$2" >&2
}

build etcd go.etcd.io/etcd/server/v3 "-s -w"
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver "$kubernetes_flags"

# Moved when finished, one by one, so that whatever is there is whole, also with two builds at a time.
mkdir -p "$dir"
mv -f "$building/etcd" "$building/kube-apiserver" "$dir/"
echo "$dir"
