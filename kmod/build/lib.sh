# shellcheck shell=bash
# Shared by build, stack and check: messages, the tools, and the question "can this kernel be served?".
# shellcheck disable=SC2034 # results are left in variables for the caller
# Sourced, never run. Callers set here= (this folder), headers= and rust_tree= first.

: "${here:?}" "${rust_tree:=}" "${headers:=}"

say() { printf 'tbrdma: %s\n' "$*" >&2; }
die() {
	say "error: $*"
	exit 1
}

# The command that installs what is missing, in the words of the distribution at hand.
# $1 is a key of the tables below.
install_hint() {
	local ids pkg=$1
	ids=$(
		# shellcheck source=/dev/null
		. /etc/os-release 2>/dev/null
		echo "${ID:-} ${ID_LIKE:-}"
	)
	case " $ids " in
	*debian* | *ubuntu*)
		case $pkg in
		libclang) pkg=libclang-dev ;;
		kernel) pkg="-t $(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")-backports linux-image-amd64 linux-headers-amd64" ;;
		headers) pkg=linux-headers-${kernel_release:-$(uname -r)} ;;
		binutils | gcc | make | rustc | rust-src | bindgen | xz-utils) ;;
		esac
		echo "apt install $pkg"
		;;
	*fedora* | *rhel*)
		case $pkg in
		libclang) pkg=clang-devel ;;
		kernel) pkg="kernel kernel-devel" ;;
		headers) pkg=kernel-devel-${kernel_release:-$(uname -r)} ;;
		rustc) pkg=rust ;;
		bindgen) pkg=bindgen-cli ;;
		xz-utils) pkg=xz ;;
		esac
		echo "dnf install $pkg"
		;;
	*arch*)
		case $pkg in
		libclang) pkg=clang ;;
		kernel) pkg="linux linux-headers" ;;
		headers) pkg=linux-headers ;;
		rustc) pkg=rust ;;
		bindgen) pkg=rust-bindgen ;;
		xz-utils) pkg=xz ;;
		esac
		echo "pacman -S $pkg"
		;;
	*) echo "install $pkg" ;;
	esac
}

# The distribution's own compiler comes first: a rustup proxy in root's PATH needs a home directory and
# may reach for the network. TBRDMA_RUSTC and TBRDMA_BINDGEN overrule.
find_tools() {
	local t
	RUSTC=${TBRDMA_RUSTC:-}
	for t in /usr/bin/rustc "$(command -v rustc || true)"; do
		[ -n "$RUSTC" ] || { [ -x "$t" ] && RUSTC=$t; } || true
	done
	BINDGEN=${TBRDMA_BINDGEN:-}
	for t in /usr/bin/bindgen "$(command -v bindgen || true)"; do
		[ -n "$BINDGEN" ] || { [ -x "$t" ] && BINDGEN=$t; } || true
	done
	rust_release="" rust_lib_src=""
	if [ -n "$RUSTC" ] && rust_verbose=$("$RUSTC" -vV 2>/dev/null); then
		rust_release=$(sed -n 's/^release: \([0-9.]*\).*/\1/p' <<<"$rust_verbose")
		rust_llvm=$(sed -n 's/^LLVM version: \([0-9.]*\).*/\1/p' <<<"$rust_verbose")
		for t in "$("$RUSTC" --print sysroot)/lib/rustlib/src/rust/library" "/usr/src/rustc-$rust_release/library"; do
			if [ -n "$rust_lib_src" ] || [ ! -e "$t/core/src/lib.rs" ]; then continue; fi
			# Debian keeps the source of each version in a folder of that name, and the sysroot points to one
			case $(readlink -f "$t") in
			/usr/src/rustc-"$rust_release"/*) rust_lib_src=$t ;;
			/usr/src/rustc-*) ;;
			*) rust_lib_src=$t ;;
			esac
		done
	fi
}

# "1.85.1" -> 108501, the form of CONFIG_RUSTC_VERSION
rust_number() {
	local a b c
	IFS=. read -r a b c <<<"$1"
	echo $((a * 100000 + b * 100 + ${c:-0}))
}
# "19.1.7" -> 190107, the form of CONFIG_RUSTC_LLVM_VERSION
llvm_number() {
	local a b c
	IFS=. read -r a b c <<<"$1"
	echo $((a * 10000 + ${b:-0} * 100 + ${c:-0}))
}

# Kernel release of a headers directory, and its series ("7.3")
read_release() {
	kernel_release=$(cat "$headers/include/config/kernel.release" 2>/dev/null) ||
		kernel_release=$(sed -n 's/.*UTS_RELEASE "\(.*\)".*/\1/p' "$headers/include/generated/utsrelease.h" 2>/dev/null)
	[ -n "$kernel_release" ] || return 1
	kernel_series=$(sed -E 's/^([0-9]+\.[0-9]+).*/\1/' <<<"$kernel_release")
}

# Where the rust/ tree of this series lies: a kernel source tree, an archive, or a folder of archives
find_tree() {
	local p=$rust_tree
	tree=
	if [ -f "$p" ] || [ -f "$p/rust/kernel/lib.rs" ]; then
		tree=$p
	elif [ -f "$p/$kernel_series.tar.xz" ]; then
		tree=$p/$kernel_series.tar.xz
	else
		return 1
	fi
}

series_packed() { (cd "$rust_tree" 2>/dev/null && printf '%s\n' *.tar.xz | sed -n 's/\.tar\.xz$//p' | tr '\n' ' '); }

has() { grep -qE "^CONFIG_$1=(y|m)$" "$headers/.config"; }

# Sets reason= to one sentence and returns 1 when the module cannot be built for the kernel at $headers.
# Cheap (a fraction of a second): DKMS asks on every status and install.
can_build() {
	local o t out
	reason=
	if [ ! -e "$headers/Makefile" ] || [ ! -e "$headers/.config" ] || [ ! -e "$headers/Module.symvers" ]; then
		reason="there are no kernel headers in $headers; $(install_hint headers)"
		return 1
	fi
	headers=$(readlink -f "$headers")
	if ! read_release; then
		reason="$headers does not say for which kernel it is (no include/config/kernel.release)"
		return 1
	fi
	if ! has X86_64; then
		reason="only x86-64 kernels are supported"
		return 1
	fi
	for o in USB4 INFINIBAND INFINIBAND_USER_ACCESS INFINIBAND_USER_MEM INFINIBAND_ADDR_TRANS NET INET; do
		has "$o" && continue
		reason="this kernel was configured without CONFIG_$o; boot a kernel that has it"
		return 1
	done
	if grep -qE '^CONFIG_RANDSTRUCT=y|^CONFIG_RANDSTRUCT_(FULL|PERFORMANCE)=y' "$headers/.config"; then
		reason="this kernel randomises the layout of its structures (CONFIG_RANDSTRUCT), which Rust bindings cannot follow"
		return 1
	fi
	for o in CFI CFI_CLANG LTO_CLANG KASAN KCSAN KMSAN; do
		has "$o" || continue
		reason="kernels with CONFIG_$o are not supported"
		return 1
	done
	if [ "$(rust_number "$kernel_series")" -lt 700000 ]; then
		reason="kernel 7.0 or newer is needed; $(install_hint kernel)"
		return 1
	fi
	if ! find_tree; then
		reason="this release of tbrdma-dkms carries the Rust support of kernel series $(series_packed)only, the kernel is $kernel_series; install a newer tbrdma-dkms"
		return 1
	fi
	for t in make gcc:gcc ld:binutils nm:binutils objcopy:binutils xz:xz-utils; do
		command -v "${t%%:*}" >/dev/null && continue
		reason="the program ${t%%:*} is missing; $(install_hint "${t##*:}")"
		return 1
	done
	find_tools
	if [ -z "$rust_release" ]; then
		reason="the Rust compiler is missing (rustc); $(install_hint rustc)"
		return 1
	fi
	if [ "$(rust_number "$rust_release")" -lt 108500 ]; then
		reason="rustc 1.85 or newer is needed, $RUSTC is $rust_release; $(install_hint rustc)"
		return 1
	fi
	if [ -z "$rust_lib_src" ]; then
		reason="the source of the core library of rustc $rust_release is missing; $(install_hint rust-src)"
		return 1
	fi
	if [ -z "$BINDGEN" ]; then
		reason="the program bindgen is missing; $(install_hint bindgen)"
		return 1
	fi
	if ! out=$("$BINDGEN" "$here/libclang.h" 2>&1); then
		case $out in
		*libclang*) reason="bindgen does not find libclang; $(install_hint libclang)" ;;
		*) reason="bindgen does not work: $(tail -n1 <<<"$out")" ;;
		esac
		return 1
	fi
	# bindgen prints libclang's version as a warning about a pragma in libclang.h
	clang_version=$(sed -n 's/.*clang version \([0-9.]*\).*/\1/p' <<<"$out" | head -n1)
}
