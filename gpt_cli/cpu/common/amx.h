/* AMX's registers: eight tiles of 16 rows of 64 bytes. Included only where the compiler knows them. */

#include <sys/syscall.h>
#include <unistd.h>

/* Ask the system for them: Linux hands them out on request. */
static inline bool amx_request(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }

static inline void amx_configure(void) {
    static const _Alignas(64) uint8_t eight_tiles[64] = {
        1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, 16, 16, 16, 16, 16, 16, 16,
    };
    _tile_loadconfig(eight_tiles);
}
