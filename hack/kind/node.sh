#!/usr/bin/env bash
# node.sh FOLDER: makes what offline.sh needs in FOLDER, unless it is there: bin/kind and bin/kubectl, and node.tar, a file
# system as that of the image kindest/node, with the images of the control plane in it. FOLDER/version says which it is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
. "$here/../envtest/versions.sh"
kind=v0.33.0 coredns=v1.14.6 cni=v1.9.1

version=$kubernetes-kind-$kind
if [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ] && [ -e "$folder/node.tar" ]; then exit 0; fi
[ "$(id -u)" = 0 ] && [ "$(. /etc/os-release && echo "$VERSION_CODENAME")" = bookworm ] ||
	{ echo "hack/kind needs root on Debian 12" >&2; exit 1; }

bin=$folder/bin
building=$folder/building
root=$building/root
rm -rf "$building"
mkdir -p "$bin" "$building"

packages() {
	local need
	for need in docker.io:dockerd debootstrap:debootstrap iproute2:ip nftables:nft iptables:iptables jq:jq; do
		"$here/../ensure.sh" "${need#*:}" "${need%:*}"
	done
}

binaries() {
	echo "building Kubernetes $kubernetes, etcd, CoreDNS, kind and CNI plugins (once: half an hour on two cores)" >&2
	(cd "$here/../envtest" && "$GO" build -o "$bin/" -ldflags "$kubernetes_flags" \
		k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy,kubelet,kubeadm,kubectl} &&
		"$GO" build -o "$bin/etcd" -ldflags '-s -w' go.etcd.io/etcd/server/v3)
	(
		export GOBIN=$bin
		"$GO" install "sigs.k8s.io/kind@$kind"
		"$GO" install -ldflags '-s -w' "github.com/coredns/coredns@$coredns"
		"$GO" install -ldflags '-s -w' "github.com/containernetworking/plugins/plugins/"{main/loopback,main/ptp,ipam/host-local,meta/portmap}"@$cni"
	)
	"$GO" build -ldflags '-s -w' -o "$bin/pause" "$here/pause"
}

# system makes the node's file system: what kind's own base image has, from Debian's packages.
system() {
	debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,containerd,runc,conntrack,iptables,nftables,iproute2,ethtool,socat,mount,kmod,procps,jq,ca-certificates \
		bookworm "$root" >&2
	cp -r --no-preserve=mode "$("$GO" mod download -json "sigs.k8s.io/kind@$kind" | jq -r .Dir)/images/base/files/." "$root/"
	chmod 755 "$root"/usr/local/bin/* "$root"/kind/bin/*
	chroot "$root" bash -ec '
		rm -f /lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* /etc/systemd/system/*.wants/*
		rm -f /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
		rm -f /lib/systemd/system/sockets.target.wants/*{udev,initctl}*
		echo ReadKMsg=no >>/etc/systemd/journald.conf
		systemctl -q enable kubelet containerd undo-mount-hacks
		systemctl -q mask systemd-binfmt
		mkdir -p /etc/kubernetes/manifests /etc/cni/net.d /opt/cni/bin
		ctr oci spec | jq ".hooks.createContainer += [{path: \"/kind/bin/mount-product-files.sh\"}] | del(.process.rlimits)" >/etc/containerd/cri-base.json
		ln -s /usr/bin/{containerd,ctr,containerd-shim-runc-v2} /usr/local/bin/
		ln -s /usr/sbin/runc /usr/local/sbin/
		apt-get clean
		rm -rf /var/lib/apt/lists/*'
	sed -i "s/restrict_oom_score_adj = false/restrict_oom_score_adj = true/; s|pause:[0-9.]*|pause:$(tag pause)|" "$root/etc/containerd/config.toml"
	echo "$kubernetes" >"$root/kind/version"
	install "$bin"/{kubelet,kubeadm,kubectl} "$root/usr/bin/"
	install "$bin"/{loopback,ptp,host-local,portmap} "$root/opt/cni/bin/"
}

# tag prints the one that kubeadm asks for.
tag() { "$bin/kubeadm" config images list --kubernetes-version "$kubernetes" | sed -n "s|.*/$1:||p"; }

# image NAME TAG puts the image of one binary into the node's store; what else is in $building/image/NAME comes with it.
image() {
	local files=$building/image/$1 tar=$building/$1
	mkdir -p "$files/usr/local/bin" "$files/tmp" "$files/etc" "$tar"
	echo root:x:0:0::/:/ >"$files/etc/passwd"
	cp "$bin/$(basename "$1")" "$files/usr/local/bin/"
	tar -C "$files" -cf "$tar/layer.tar" .
	printf '{"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/usr/local/bin/%s"], "Env": ["PATH=/usr/local/bin:/usr/sbin"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
		"$(basename "$1")" "$(sha256sum <"$tar/layer.tar" | cut -d' ' -f1)" >"$tar/config.json"
	printf '[{"Config": "config.json", "RepoTags": ["registry.k8s.io/%s:%s"], "Layers": ["layer.tar"]}]' "$1" "$2" >"$tar/manifest.json"
	tar -C "$tar" -c manifest.json config.json layer.tar |
		ctr --address "$building/containerd.sock" --namespace k8s.io images import --all-platforms --digests - >&2
	rm -r "$files" "$tar"
}

# images fills the node's store, by a containerd of this machine that works on it.
images() {
	cat >"$building/containerd.toml" <<-EOF
		version = 2
		root = "$root/var/lib/containerd"
		state = "$building/state"
		disabled_plugins = ["io.containerd.grpc.v1.cri"]
		[grpc]
		address = "$building/containerd.sock"
	EOF
	containerd --config "$building/containerd.toml" >"$building/containerd.log" 2>&1 &
	local containerd=$! part file
	for _ in $(seq 50); do [ -S "$building/containerd.sock" ] || sleep 0.1; done
	for part in apiserver controller-manager scheduler; do image "kube-$part" "$kubernetes"; done
	image etcd "$(tag etcd)"
	image coredns/coredns "$(tag coredns)"
	image pause "$(tag pause)"

	# kube-proxy runs nft and iptables: those of the node, with the libraries that they load.
	local proxy=$building/image/kube-proxy
	mkdir -p "$proxy"/{run,var/lib,usr/{sbin,lib},lib64}
	ln -s usr/lib "$proxy/lib"
	cp -L "$root"/usr/sbin/{nft,xtables-nft-multi} "$proxy/usr/sbin/"
	for part in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -s xtables-nft-multi "$proxy/usr/sbin/$part"
	done
	for file in $(chroot "$root" ldd /usr/sbin/nft /usr/sbin/xtables-nft-multi | grep -oE '/[^ )]+\.so[^ )]*' | sort -u); do
		(cd "$root" && cp --parents -L ".$file" "$proxy")
	done
	(cd "$root" && cp -r --parents usr/lib/x86_64-linux-gnu/xtables "$proxy")
	image kube-proxy "$kubernetes"
	kill "$containerd"
	wait "$containerd" || true
}

packages
binaries
system
images
tar -C "$root" -cf "$folder/node.tar" .
rm -rf "$building"
echo "$version" >"$folder/version"
