/* A file system that fails on command: what lies in one folder, seen through FUSE, with one call refused.

   io_fault_fuse FOLDER CONTROL -f MOUNTPOINT      CONTROL: a file that holds a Control, which whoever commands it changes

   Call number `at` (from 1; 0: none) of those that `call` names gives `error`, and if `lasting` all that follow of them
   do; `calls` counts them. */

#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct {
    char call[64]; /* names, and spaces between them; none is part of another */
    int64_t at, error, lasting, calls;
} Control;

static volatile Control *control;
static const char *folder;

static int refused(const char *call) {
    if (!strstr((const char *)control->call, call)) return 0;
    int64_t now = ++control->calls, at = control->at;
    return at && (control->lasting ? now >= at : now == at) ? (int)-control->error : 0;
}

/* `path` in the folder, in one of two places. */
static const char *in_folder(const char *path, int which) {
    static char whole[2][2 * PATH_MAX];
    snprintf(whole[which], sizeof whole[which], "%s%s", folder, path);
    return whole[which];
}

#define REFUSE(call)                                                                                                 \
    do {                                                                                                             \
        int error_ = refused(call);                                                                                  \
        if (error_) return error_;                                                                                   \
    } while (0)
#define RESULT(of) ((of) < 0 ? -errno : 0)

static int get_attributes(const char *path, struct stat *facts, struct fuse_file_info *info) {
    return RESULT(info ? fstat((int)info->fh, facts) : lstat(in_folder(path, 0), facts));
}
static int make_folder(const char *path, mode_t mode) {
    REFUSE("mkdir");
    return RESULT(mkdir(in_folder(path, 0), mode));
}
static int remove_file(const char *path) {
    REFUSE("unlink");
    return RESULT(unlink(in_folder(path, 0)));
}
static int remove_folder(const char *path) {
    REFUSE("rmdir");
    return RESULT(rmdir(in_folder(path, 0)));
}
static int move(const char *from, const char *to, unsigned flags) {
    REFUSE("rename");
    return flags ? -EINVAL : RESULT(rename(in_folder(from, 0), in_folder(to, 1)));
}
static int cut(const char *path, off_t size, struct fuse_file_info *info) {
    REFUSE("truncate");
    return RESULT(info ? ftruncate((int)info->fh, size) : truncate(in_folder(path, 0), size));
}
static int open_as(const char *path, int flags, mode_t mode, struct fuse_file_info *info) {
    int descriptor = open(in_folder(path, 0), flags, mode);
    if (descriptor < 0) return -errno;
    info->fh = (uint64_t)descriptor, info->direct_io = 1; /* every read comes here */
    return 0;
}
static int open_file(const char *path, struct fuse_file_info *info) {
    REFUSE(info->flags & (O_WRONLY | O_RDWR) ? "create" : "open");
    return open_as(path, info->flags, 0, info);
}
static int create_file(const char *path, mode_t mode, struct fuse_file_info *info) {
    REFUSE("create");
    return open_as(path, info->flags | O_CREAT, mode, info);
}
static int read_file(const char *path, char *to, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    REFUSE("read");
    ssize_t n = pread((int)info->fh, to, size, at);
    return n < 0 ? -errno : (int)n;
}
static int write_file(const char *path, const char *from, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    REFUSE("write");
    ssize_t n = info->flags & O_APPEND ? write((int)info->fh, from, size) : pwrite((int)info->fh, from, size, at);
    return n < 0 ? -errno : (int)n;
}
static int space(const char *path, struct statvfs *facts) { return RESULT(statvfs(in_folder(path, 0), facts)); }
static int release_file(const char *path, struct fuse_file_info *info) {
    (void)path;
    return RESULT(close((int)info->fh));
}
static int flush_file(const char *path, int only_data, struct fuse_file_info *info) {
    (void)path, (void)only_data;
    REFUSE("fsync");
    return RESULT(fsync((int)info->fh));
}
static int flush_folder(const char *path, int only_data, struct fuse_file_info *info) {
    (void)path, (void)only_data, (void)info;
    REFUSE("fsync");
    return 0;
}
static int lock_file(const char *path, struct fuse_file_info *info, int operation) {
    (void)path;
    REFUSE("flock");
    return RESULT(flock((int)info->fh, operation | LOCK_NB));
}
static int list_folder(const char *path, void *to, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *info,
                       enum fuse_readdir_flags flags) {
    (void)at, (void)info, (void)flags;
    DIR *opened = opendir(in_folder(path, 0));
    if (!opened) return -errno;
    for (struct dirent *entry; (entry = readdir(opened));) fill(to, entry->d_name, NULL, 0, 0);
    return RESULT(closedir(opened));
}

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config) {
    (void)connection;
    config->hard_remove = 1; /* what is open and removed gets no name of FUSE's own */
    return NULL;
}

int main(int n, char **arguments) {
    if (n < 5) return 2;
    folder = realpath(arguments[1], NULL);
    int descriptor = open(arguments[2], O_RDWR);
    void *shared = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (!folder || shared == MAP_FAILED) return 2;
    control = shared;
    const struct fuse_operations operations = {
        .init = begin, .getattr = get_attributes, .mkdir = make_folder, .unlink = remove_file, .rmdir = remove_folder, .rename = move,
        .truncate = cut, .open = open_file, .create = create_file, .read = read_file, .write = write_file, .statfs = space,
        .release = release_file, .fsync = flush_file, .fsyncdir = flush_folder, .flock = lock_file, .readdir = list_folder,
    };
    char *rest[] = {arguments[0], "-f", "-s", arguments[n - 1], NULL};
    return fuse_main(4, rest, &operations, NULL);
}
