#!/bin/sh
# seeded.sh WORK: tests changes that check_abi.sh must refuse or accept, on a small header.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
rm -rf "$work"
mkdir -p "$work/old" "$work/new"
cat > "$work/old/bn_engine.h" << 'END'
#include <stdint.h>

/** Fine. */
#define BN_FINE 0

// A struct.
typedef struct bn_pair {
    // One.
    int32_t one;
    int32_t two;
} bn_pair;

// It grows into its room.
typedef struct bn_part {
    int32_t three;
    int32_t four;
    uint64_t reserved[2];
} bn_part;

// It grows.
typedef struct bn_config {
    uint32_t struct_size;
    int32_t threads;
    bn_pair pair;
    bn_part part;
    uint32_t flags;
    uint32_t end;
} bn_config;

// Called back.
typedef void (*bn_callback)(int32_t level, void *context);

/**
 * Sets.
 */
int32_t bn_set(bn_config *config,
               uint32_t size, bn_callback call);
// Gets.
int32_t bn_get(const bn_config *config);
END
"$here/dump.sh" "$work/old/bn_engine.h" "$work/accepted"

# try refuse|pass WHAT SED_PROGRAM
try() {
    sed "$3" "$work/old/bn_engine.h" > "$work/new/bn_engine.h"
    ! cmp -s "$work/old/bn_engine.h" "$work/new/bn_engine.h" || { echo "seeded.sh: '$2' changes nothing"; exit 1; }
    if "$here/check_abi.sh" "$work/new/bn_engine.h" "$work/accepted" "$work/check" > "$work/said" 2>&1; then
        verdict=pass
    else
        verdict=refuse
    fi
    [ $verdict = "$1" ] || { cat "$work/said"; echo "seeded.sh: $2: $verdict, expected $1"; exit 1; }
}
# After a `pass`: checks the number of listed additions.
added() { [ "$(grep -c ^added "$work/said")" = "$1" ] || { cat "$work/said"; echo "seeded.sh: not $1 added"; exit 1; }; }

try refuse "a field moved" '/int32_t threads/d; s/^    uint32_t flags;/&\n    int32_t threads;/'
try refuse "a field's type changed" 's/int32_t threads/float threads/'
try refuse "a field gone" '/uint32_t flags/d'
try refuse "a struct without struct_size grew" 's/int32_t two;/&\n    int32_t three;/'
try refuse "a constant changed" 's/BN_FINE 0/BN_FINE 1/'
try refuse "a constant gone" '/BN_FINE/d'
try refuse "a function gone" '/bn_get/d'
try refuse "a parameter's type changed" 's/uint32_t size/uint64_t size/'
try refuse "a result's type changed" 's/int32_t bn_get/int64_t bn_get/'
try refuse "a callback's parameter changed" 's/(int32_t level/(int64_t level/'
try pass "a parameter renamed" 's/uint32_t size/uint32_t bytes/'
try refuse "a field beside reserved room" 's/int32_t four;/&\n    uint64_t more;/'
try refuse "a field behind reserved room" 's/uint64_t reserved.2.;/uint64_t reserved[1];\n    uint64_t more;/'
try refuse "reserved room gone" '/reserved/d'
try pass "a field in reserved room" 's/uint64_t reserved.2.;/uint64_t more;\n    uint64_t reserved[1];/'
added 2
try pass "fields in all reserved room" 's/uint64_t reserved.2.;/uint64_t more;\n    uint64_t most;/'
added 3
try pass "fields at the end" 's/uint32_t end;/&\n    uint32_t more;\n    uint32_t most;/'
added 3
try pass "a constant and a function" 's/^#define.*/&\n#define BN_NEW 1/; s/^int32_t bn_get.*/&\nvoid bn_free(void);/'
added 2
echo "the check of the interface refuses what it must, and nothing else"
