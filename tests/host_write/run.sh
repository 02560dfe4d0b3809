#!/bin/bash
# Runs the tests that write to this machine: huge-page words and the huge= option of /dev/shm, nothing else.
#   sudo HICACHECTL_ALLOW_HOST_WRITES=1 tests/host_write/run.sh
# What was there is saved first, put back when this script ends in any way, and compared afterwards. Never PCI config or MSRs.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ ${HICACHECTL_ALLOW_HOST_WRITES:-} != 1 ]]; then
    echo "not run: these tests change settings of this machine; set HICACHECTL_ALLOW_HOST_WRITES=1 to allow it" >&2
    exit 2
fi
if [[ $EUID -ne 0 ]]; then echo "not run: needs root" >&2; exit 4; fi
THP=/sys/kernel/mm/transparent_hugepage
SAVED=$(mktemp -d)

settings() {  # every word of the THP folder, and the mounts of tmpfs
    find $THP -type f -not -path '*/stats/*' -not -name '*full_scans' -not -name 'pages_collapsed' | sort | while read -r file; do
        printf '%s: %s\n' "$file" "$(cat "$file" 2>/dev/null || echo unreadable)"
    done
    grep -w tmpfs /proc/mounts
}

restore() {
    trap - EXIT
    local file word
    while IFS=': ' read -r file word; do
        [[ $file == $THP/* && $word == *"["* ]] || continue
        word=${word#*[}; word=${word%%]*}
        grep -qF "[$word]" "$file" || echo "$word" >"$file"
    done <"$SAVED/before"
    huge=$(sed -n 's/.*[ ,]huge=\([a-z_]*\).*/\1/p' <(awk '$2 == "/dev/shm"' "$SAVED/mounts") | tail -1)
    now=$(sed -n 's/.*[ ,]huge=\([a-z_]*\).*/\1/p' <(awk '$2 == "/dev/shm"' /proc/mounts) | tail -1)
    [[ ${huge:-never} == "${now:-never}" ]] || mount -o "remount,huge=${huge:-never}" /dev/shm
    settings >"$SAVED/after"
    if ! diff "$SAVED/before" "$SAVED/after"; then
        echo "THIS MACHINE IS NOT AS IT WAS: see the lines above; what was there is in $SAVED" >&2
        exit 7
    fi
    rm -r "$SAVED"
    echo "settings before and after: equal"
    exit "${RESULT:-1}"
}

cat /proc/mounts >"$SAVED/mounts"
settings >"$SAVED/before"
trap restore EXIT
RESULT=0
.venv/bin/python -m pytest -rs -m host_write tests/host_write "$@" || RESULT=$?
