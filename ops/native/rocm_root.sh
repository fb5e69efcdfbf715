#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rocm_root.sh FOLDER: as much of ROCm as clang-19 needs to compile for gfx942.
# HIP headers are those in Triton's wheel, device libraries those of Debian's
# rocm-device-libs, too old to know gfx942 and the newer code object versions:
# which are constants, written here.
set -eu
cd "$(dirname "$0")"
root=$1
debian=/usr/lib/x86_64-linux-gnu/amdgcn/bitcode
if ! [ -f $debian/ocml.bc ] || ! command -v llvm-as-19 >/dev/null; then
  echo 'make gfx942 needs: apt-get install clang-19 lld-19 llvm-19' \
    'clang-tools-19 rocm-device-libs' >&2
  exit 1
fi
rm -rf "$root"
mkdir -p "$root/wheel" "$root/bin" "$root/share/hip" "$root/amdgcn/bitcode"

# Its Python does not matter, so neither does ours.
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check \
  --no-deps --only-binary=:all: --dest "$root/wheel" -r requirements.txt
"${PYTHON:-python3}" - "$root" <<'END'
import pathlib, sys, zipfile

root = pathlib.Path(sys.argv[1])
prefix = 'triton/backends/amd/include/'
with zipfile.ZipFile(next(root.glob('wheel/*.whl'))) as wheel:
  for name in wheel.namelist():
    if name.startswith(prefix) and not name.endswith('/'):
      path = root / 'include' / name.removeprefix(prefix)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(wheel.read(name))
END
rm -r "$root/wheel"
printf 'HIP_VERSION_MAJOR=7\nHIP_VERSION_MINOR=1\nHIP_VERSION_PATCH=0\n' \
  > "$root/share/hip/version"

cp $debian/*.bc "$root/amdgcn/bitcode"
layout=$(echo 'int x;' | clang-19 -x c --target=amdgcn-amd-amdhsa -nogpulib -S \
  -emit-llvm -o - - | grep '^target')
constant() {
  printf '%s\n@%s = linkonce_odr hidden addrspace(4) constant i32 %s\n' \
    "$layout" "$1" "$2" | llvm-as-19 -o "$root/amdgcn/bitcode/$3.bc"
}
constant __oclc_ISA_version 9402 oclc_isa_version_942
constant __oclc_ABI_version 500 oclc_abi_version_500
constant __oclc_ABI_version 600 oclc_abi_version_600
touch "$root/.complete"
