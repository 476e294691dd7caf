/* A disk that fails below Python: loaded before all else (LD_PRELOAD), it refuses file operations under one folder.

   `disk_fails(folder, call, at, error, lasting)`: call number `at` (from 1; 0: none) of `call` gives `error`, and if `lasting` all
   that follow of it do. `disk_calls()`: how many there were. Linux. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char under[PATH_MAX], which[32];
static long fails_at;
static int fails_with, fails_on;
static atomic_long calls;

void disk_fails(const char *folder, const char *call, long at, int error, int lasting) {
    snprintf(under, sizeof under, "%s", folder), snprintf(which, sizeof which, "%s", call);
    fails_at = at, fails_with = error, fails_on = lasting, calls = 0;
}

long disk_calls(void) { return calls; }

/* Whether this call is refused, and errno set. */
static int refused(const char *call, const char *path) {
    if (!*under || strcmp(call, which) || !path) return 0;
    char whole[2 * PATH_MAX];
    if (*path == '/') snprintf(whole, sizeof whole, "%s", path);
    else if (getcwd(whole, PATH_MAX)) strcat(strcat(whole, "/"), path);
    if (strncmp(whole, under, strlen(under))) return 0;
    long now = ++calls;
    if (!fails_at || (fails_on ? now < fails_at : now != fails_at)) return 0;
    errno = fails_with;
    return 1;
}

static int refused_there(const char *call, int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return refused(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t size) {
    return refused_there("write", descriptor) ? -1 : REAL(write)(descriptor, data, size);
}
int fsync(int descriptor) { return refused_there("fsync", descriptor) ? -1 : REAL(fsync)(descriptor); }
int flock(int descriptor, int operation) { return refused_there("flock", descriptor) ? -1 : REAL(flock)(descriptor, operation); }
int ftruncate64(int descriptor, off64_t size) {
    return refused_there("truncate", descriptor) ? -1 : REAL(ftruncate64)(descriptor, size);
}
int truncate64(const char *path, off64_t size) { return refused("truncate", path) ? -1 : REAL(truncate64)(path, size); }
int rename(const char *from, const char *to) { return refused("rename", to) ? -1 : REAL(rename)(from, to); }
int unlink(const char *path) { return refused("unlink", path) ? -1 : REAL(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return refused("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }
ssize_t read(int descriptor, void *data, size_t size) {
    return refused_there("read", descriptor) ? -1 : REAL(read)(descriptor, data, size);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    const char *call = flags & (O_CREAT | O_WRONLY | O_RDWR) ? "create" : "open";
    return refused(call, path) ? -1 : REAL(open64)(path, flags, mode);
}
