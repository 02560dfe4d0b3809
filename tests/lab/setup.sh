#!/usr/bin/env bash
# Build the four pieces of the topology lab (guest kernel, guest root image, QEMU, Python packages) into a cache folder.
#
#   sudo ./setup.sh           build what is missing, print what was done and the sizes
#   ./setup.sh --where        print "kernel=PATH", "root=PATH", "qemu=PATH", "site=PATH"; exit 3 if a piece is missing
#
# $LAB_PYTHON (default python3) is the Python whose pip fetches the packages; any version will do.
# Cache: $LAB_CACHE, default ~/.cache/hicachectl-lab. Each piece lies in PIECE-KEY/, where KEY is a hash of the functions
# below that build it: change the recipe and it is rebuilt, leave it and it is skipped. Deleting the folder is always safe.
# Packages come from the Debian mirror that apt on this machine is configured for.
set -euo pipefail

lab_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-$HOME/.cache/hicachectl-lab}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
pieces=(kernel root qemu site)
constraints=$lab_dir/../../constraints.txt

fail() {
    echo "setup.sh: $*" >&2
    exit 1
}

say() {
    printf '%4ds  %s\n' "$SECONDS" "$*"
}

# --- where the packages come from ------------------------------------------------------------------------------------

debian_mirror() {
    # The base address apt uses for Debian 12 itself, for example scheme://host/debian
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' |
        sed -n '1s|/*$||p'
}

export_apt_proxy() {
    # debootstrap does not read apt's configuration: hand it the proxy, if apt has one.
    local proxy=''
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    if [[ -n $proxy && $proxy != DIRECT ]]; then
        export http_proxy=$proxy https_proxy=$proxy
    fi
}

download_with_dependencies() {
    # download_with_dependencies FOLDER SUITES PACKAGE...: all .deb files that PACKAGE... need on an empty system.
    # Uses its own package lists, so the machine's apt sources stay as they are.
    local folder=$1 suites=$2 suite
    shift 2
    mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,empty}
    : >"$folder/status"
    for suite in $suites; do
        echo "deb [signed-by=$keyring] $(debian_mirror) $suite main"
    done >"$folder/sources.list"
    local own_apt=(apt-get -qq -y -o APT::Sandbox::User=root
        -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts="$folder/empty"
        -o Dir::Etc::preferencesparts="$folder/empty" -o Dir::State="$folder/state"
        -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache")
    "${own_apt[@]}" update
    # The last suite named wins where two have the package.
    "${own_apt[@]}" install --download-only --no-install-recommends -t "$suite" -o Dpkg::Use-Pty=0 "$@" >/dev/null
}

# --- the pieces: each function builds into the folder $1 -------------------------------------------------------------

build_kernel() {
    # The cloud kernel has PCIe ports, NVMe, NUMA, ext4 and lockdown built in: it needs no initramfs.
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/.*Depends: \(linux-image-6\.1\.0-.*-cloud-amd64\)$/\1/p' | head -1)
    [[ -n $package ]] || fail "apt knows no linux-image-6.1.0-*-cloud-amd64: is this Debian 12 with its main component?"
    (cd "$1" && apt-get -qq -o APT::Sandbox::User=root download "$package")
    dpkg-deb --fsys-tarfile "$1"/linux-image-*.deb | tar -xf - -C "$1" --wildcards './boot/vmlinuz-*' --strip-components=2
    mv "$1"/vmlinuz-* "$1/vmlinuz"
    dpkg-deb -f "$1"/linux-image-*.deb Package Version >"$1/VERSION"
    rm "$1"/linux-image-*.deb
}

build_root() {
    # Debian 12 minbase with Python; what no job needs is removed. The guest mounts the image read-only.
    local tree=$1/tree
    debootstrap --variant=minbase --include=python3,pciutils,numactl,kmod bookworm "$tree" "$(debian_mirror)" \
        >"$1/debootstrap.log" 2>&1 || { tail -5 "$1/debootstrap.log" >&2; fail "debootstrap of bookworm failed"; }
    rm -rf "$tree"/usr/share/{doc,man,info,locale,perl,perl5,lintian,bug} "$tree"/usr/lib/x86_64-linux-gnu/{gconv,perl,perl-base} \
        "$tree"/usr/lib/python3*/{test,idlelib,lib2to3,ensurepip} "$tree"/var/cache/apt "$tree"/var/lib/apt/lists
    find "$tree/usr/lib" -name __pycache__ -type d -exec rm -rf {} +
    mkdir -p "$tree/job"
    install -m 755 "$lab_dir/guest_init.sh" "$tree/lab-init"
    chroot "$tree" python3 -m compileall -q /usr/lib/python3.11 # the image is read-only: no later chance
    chroot "$tree" dpkg-query -W -f '${Package} ${Version}\n' >"$1/VERSION"
    local used_mib
    used_mib=$(du -sm "$tree" | cut -f1)
    mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$tree" "$1/root.ext4" "$((used_mib * 5 / 4 + 16))M" >/dev/null
    rm -rf "$tree" "$1/debootstrap.log"
}

build_qemu() {
    # vfio-user-pci came with QEMU 10.1; Debian 12 has 7.2. Debian 13's backport is unpacked, not installed: the binary,
    # the libraries it loads (with their own dynamic loader) and its firmware files.
    local unpack=$1/unpack deb tree=$1/unpack/tree loader
    mkdir -p "$tree" "$1"/{lib,share}
    download_with_dependencies "$unpack" "trixie trixie-backports" qemu-system-x86 qemu-system-data seabios
    for deb in "$unpack"/cache/archives/*.deb; do
        dpkg-deb -x "$deb" "$tree"
    done
    cp "$tree/usr/bin/qemu-system-x86_64" "$1/"
    loader=$(find "$tree" -name 'ld-linux-x86-64.so.2' -type f | head -1)
    cp "$loader" "$1/lib/"
    "$loader" --library-path "$tree/usr/lib/x86_64-linux-gnu:$tree/lib/x86_64-linux-gnu" \
        --list "$1/qemu-system-x86_64" >"$unpack/libraries"
    if grep 'not found' "$unpack/libraries" >&2; then
        fail "QEMU's tree lacks the libraries above"
    fi
    awk '$2 == "=>" {print $3}' "$unpack/libraries" | xargs cp -L -t "$1/lib"
    cp -L "$tree"/usr/share/qemu/{linuxboot_dma.bin,kvmvapic.bin} "$tree"/usr/share/seabios/bios-256k.bin "$1/share/"
    dpkg-deb -f "$unpack"/cache/archives/qemu-system-x86_*.deb Package Version >"$1/VERSION"
    rm -rf "$unpack"
    "$1/lib/ld-linux-x86-64.so.2" --library-path "$1/lib" "$1/qemu-system-x86_64" -device vfio-user-pci,help >/dev/null ||
        fail "this QEMU has no vfio-user-pci device (10.1 or newer is needed)"
}

build_site() {
    # What `hicachectl topo` imports in the guest, as wheels for its Python 3.11: no torch, no numpy.
    local python=${LAB_PYTHON:-python3}
    "$python" -m pip --version >/dev/null || fail "$python has no pip: name one that has in LAB_PYTHON"
    "$python" -m pip install --quiet --disable-pip-version-check --target "$1/site" --only-binary :all: \
        --python-version 3.11 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
        -c "$constraints" typer rich pyyaml pydantic psutil zstandard
    find "$1/site" -name __pycache__ -type d -exec rm -rf {} +
    (cd "$1/site" && ls -d ./*.dist-info) | sed 's|^./||; s|.dist-info$||' >"$1/VERSION"
}

# --- cache -----------------------------------------------------------------------------------------------------------

piece_folder() {
    local key
    key=$({
        declare -f "build_$1" debian_mirror download_with_dependencies
        if [[ $1 == root ]]; then cat "$lab_dir/guest_init.sh"; fi
        if [[ $1 == site ]]; then cat "$constraints"; fi
    } | sha256sum | cut -c1-12)
    echo "$cache/$1-$key"
}

print_where() {
    local kernel root qemu site
    kernel=$(piece_folder kernel)/vmlinuz root=$(piece_folder root)/root.ext4 qemu=$(piece_folder qemu)/qemu-system-x86_64
    site=$(piece_folder site)/site
    printf 'kernel=%s\nroot=%s\nqemu=%s\nsite=%s\n' "$kernel" "$root" "$qemu" "$site"
    if [[ ! -e $kernel || ! -e $root || ! -e $qemu || ! -e $site ]]; then
        echo "setup.sh: the lab is not set up, $cache lacks a piece of this recipe: run make lab as root" >&2
        exit 3
    fi
}

check_machine() {
    [[ $(id -u) == 0 ]] || fail "run as root: it installs packages and makes a root file system"
    # shellcheck disable=SC1091
    [[ $(. /etc/os-release && echo "$ID-$VERSION_ID") == debian-12 ]] || fail "needs Debian 12"
    [[ $(dpkg --print-architecture) == amd64 ]] || fail "needs an amd64 machine"
    [[ -n $(debian_mirror) ]] || apt-get -qq update
    [[ -n $(debian_mirror) ]] || fail "apt has no source for Debian 12 (bookworm): cannot tell which mirror to use"
}

install_host_packages() {
    local package missing=()
    for package in debootstrap e2fsprogs debian-archive-keyring python3; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    if ((${#missing[@]})); then
        say "installing ${missing[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${missing[@]}" >/dev/null
    fi
}

clean_up() {
    if [[ -e ${unfinished:-} ]]; then
        rm -rf "$unfinished"
        echo "setup.sh: $building could not be built, the reason is above; finished pieces are kept" >&2
    fi
}

build_missing_pieces() {
    local piece folder
    for piece in "${pieces[@]}"; do
        folder=$(piece_folder "$piece")
        if [[ -e $folder ]]; then
            say "$piece: already there, skipped"
            continue
        fi
        if [[ -z ${package_lists_fresh:-} ]]; then
            apt-get -qq update
            package_lists_fresh=yes
            install_host_packages
            export_apt_proxy
        fi
        say "$piece: building"
        building=$piece
        unfinished=$(mktemp -d "$cache/unfinished.XXXXXX")
        chmod 755 "$unfinished"
        "build_$piece" "$unfinished"
        mv "$unfinished" "$folder"
        say "$piece: built"
    done
}

main() {
    if [[ ${1:-} == --where ]]; then
        print_where
        return
    fi
    [[ $# == 0 ]] || fail "unknown argument $1"
    check_machine
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    trap clean_up EXIT
    build_missing_pieces
    local piece folder
    for piece in "${pieces[@]}"; do
        folder=$(piece_folder "$piece")
        printf '%-7s %6s  %s\n' "$piece" "$(du -sh "$folder" | cut -f1)" "$(grep -hE '^(Package: )?(linux-image|qemu-system-x86|python3 |typer)|^Version' "$folder/VERSION" | tr '\n' ' ')"
    done
    say "done: $cache"
}

main "$@"
