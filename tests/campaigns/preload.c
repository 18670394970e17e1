/* System calls that fail on purpose.

   A library to be preloaded. It counts the calls of a process, and of the processes that it starts, on paths below
   one directory, and lets the k-th of a kind fail or return less than was asked for.
   What to do is in a file that is shared by all processes, named by TOKSHARD_CALLS; see calls.py for the layout. */

#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FSYNC, CLOSE, RENAME, LINK, UNLINK, MKDIR, RMDIR, TRUNCATE, COPY, MMAP, STAT, LOCK, LIST, KINDS };
enum { SHORT = -1, ZERO = -2 };

struct state {
    int32_t armed;   /* 0: pass everything on */
    int32_t kind;    /* of the calls that count; -1: only count */
    int64_t k;       /* the first call that fails, from 1 */
    int64_t until;   /* the first call after it that does not */
    int32_t action;  /* an errno, or one of the actions above */
    int32_t padding;
    _Atomic int64_t fired;
    _Atomic int64_t total;
    _Atomic int64_t counts[KINDS];
    char prefix[512];
    char where[512]; /* the path of the call that failed */
};

static struct state *shared;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("TOKSHARD_CALLS");
    if (!path) return;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = (void *)syscall(SYS_mmap, NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found != MAP_FAILED) shared = found;
}

/* Return whether a path, absolute by now, is below the directory. */
static int below(const char *path) {
    size_t length = strlen(shared->prefix);
    return !strncmp(path, shared->prefix, length) && (path[length] == '/' || !path[length]);
}

static int place_of_fd(int fd, char *place, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, place, size - 1);
    if (length < 0) return 0;
    place[length] = 0;
    return below(place);
}

static int place_of_path(int directory, const char *path, char *place, size_t size) {
    if (!path) return 0;
    if (path[0] == '/') {
        snprintf(place, size, "%s", path);
    } else {
        if (directory == AT_FDCWD) {
            if (syscall(SYS_getcwd, place, size) < 0) return 0;
        } else if (!place_of_fd(directory, place, size)) {
            return 0;
        }
        size_t length = strlen(place);
        snprintf(place + length, size - length, "/%s", path);
    }
    return below(place);
}

/* Count a call; return 0 to do it, or the action. */
static int turn(int kind, const char *place) {
    int64_t mine = ++shared->counts[kind];
    ++shared->total;
    if (shared->kind != kind) return 0;
    if (mine < shared->k || mine >= shared->until) return 0;
    if (shared->fired++ == 0) snprintf(shared->where, sizeof shared->where, "%s", place);
    return shared->action;
}

static int on_fd(int kind, int fd) {
    char place[1024];
    if (!shared || !shared->armed || fd < 0) return 0;
    int saved = errno, action = place_of_fd(fd, place, sizeof place) ? turn(kind, place) : 0;
    errno = saved;
    return action;
}

static int on_path(int kind, int directory, const char *path) {
    char place[1024];
    if (!shared || !shared->armed) return 0;
    int saved = errno, action = place_of_path(directory, path, place, sizeof place) ? turn(kind, place) : 0;
    errno = saved;
    return action;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL(action, wrong) \
    if ((action) > 0) { \
        errno = (action); \
        return wrong; \
    }
/* A call without a size: it fails, or is done. */
#define PLAIN(type, name, parameters, arguments, decide, wrong) \
    type name parameters { \
        REAL(name); \
        int action = decide; \
        FAIL(action, wrong) \
        type result = real arguments; \
        return result; \
    }
/* A call that may do less than it was asked for. */
#define SIZED(name, parameters, arguments, fewer, count, decide) \
    ssize_t name parameters { \
        REAL(name); \
        int action = decide; \
        FAIL(action, -1) \
        if (action == ZERO) return 0; \
        if (action == SHORT && (count) > 1) { \
            ssize_t result = real fewer; \
            return result; \
        } \
        ssize_t result = real arguments; \
        return result; \
    }
#define HALF_OF(count) ((count) / 2)

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int action = on_path(OPEN, AT_FDCWD, path); \
        FAIL(action, -1) \
        int result = real(path, flags, mode); \
        return result; \
    }
#define OPENING_AT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int action = on_path(OPEN, directory, path); \
        FAIL(action, -1) \
        int result = real(directory, path, flags, mode); \
        return result; \
    }
OPENING(open)
OPENING(open64)
OPENING_AT(openat)
OPENING_AT(openat64)
PLAIN(FILE *, fopen, (const char *path, const char *mode), (path, mode), on_path(OPEN, AT_FDCWD, path), NULL)
PLAIN(FILE *, fopen64, (const char *path, const char *mode), (path, mode), on_path(OPEN, AT_FDCWD, path), NULL)

SIZED(read, (int fd, void *to, size_t count), (fd, to, count), (fd, to, HALF_OF(count)), count, on_fd(READ, fd))
SIZED(pread, (int fd, void *to, size_t count, off_t at), (fd, to, count, at), (fd, to, HALF_OF(count), at), count,
      on_fd(READ, fd))
SIZED(pread64, (int fd, void *to, size_t count, off64_t at), (fd, to, count, at), (fd, to, HALF_OF(count), at), count,
      on_fd(READ, fd))
SIZED(write, (int fd, const void *from, size_t count), (fd, from, count), (fd, from, HALF_OF(count)), count,
      on_fd(WRITE, fd))
SIZED(pwrite, (int fd, const void *from, size_t count, off_t at), (fd, from, count, at),
      (fd, from, HALF_OF(count), at), count, on_fd(WRITE, fd))
SIZED(pwrite64, (int fd, const void *from, size_t count, off64_t at), (fd, from, count, at),
      (fd, from, HALF_OF(count), at), count, on_fd(WRITE, fd))

/* Fewer bytes of several buffers: half of the first. */
#define SHORTER(parts) (const struct iovec[]){{(parts)->iov_base, ((parts)->iov_len + 1) / 2}}, 1
SIZED(readv, (int fd, const struct iovec *parts, int count), (fd, parts, count), (fd, SHORTER(parts)), 2,
      on_fd(READ, fd))
SIZED(preadv, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at),
      (fd, SHORTER(parts), at), 2, on_fd(READ, fd))
SIZED(preadv64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at),
      (fd, SHORTER(parts), at), 2, on_fd(READ, fd))
SIZED(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), (fd, SHORTER(parts)), 2,
      on_fd(WRITE, fd))
SIZED(pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at),
      (fd, SHORTER(parts), at), 2, on_fd(WRITE, fd))
SIZED(pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at),
      (fd, SHORTER(parts), at), 2, on_fd(WRITE, fd))
SIZED(copy_file_range, (int from, off64_t *from_at, int to, off64_t *to_at, size_t count, unsigned flags),
      (from, from_at, to, to_at, count, flags), (from, from_at, to, to_at, HALF_OF(count), flags), count,
      on_fd(COPY, to))

PLAIN(int, fsync, (int fd), (fd), on_fd(FSYNC, fd), -1)
PLAIN(int, fdatasync, (int fd), (fd), on_fd(FSYNC, fd), -1)
PLAIN(int, ftruncate, (int fd, off_t size), (fd, size), on_fd(TRUNCATE, fd), -1)
PLAIN(int, ftruncate64, (int fd, off64_t size), (fd, size), on_fd(TRUNCATE, fd), -1)
PLAIN(int, flock, (int fd, int how), (fd, how), on_fd(LOCK, fd), -1)
PLAIN(int, rename, (const char *old, const char *new), (old, new), on_path(RENAME, AT_FDCWD, new), -1)
PLAIN(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new),
      on_path(RENAME, to, new), -1)
PLAIN(int, link, (const char *old, const char *new), (old, new), on_path(LINK, AT_FDCWD, new), -1)
PLAIN(int, linkat, (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags),
      on_path(LINK, to, new), -1)
PLAIN(int, unlink, (const char *path), (path), on_path(UNLINK, AT_FDCWD, path), -1)
PLAIN(int, unlinkat, (int directory, const char *path, int flags), (directory, path, flags),
      on_path(flags & AT_REMOVEDIR ? RMDIR : UNLINK, directory, path), -1)
PLAIN(int, mkdir, (const char *path, mode_t mode), (path, mode), on_path(MKDIR, AT_FDCWD, path), -1)
PLAIN(int, mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode),
      on_path(MKDIR, directory, path), -1)
PLAIN(int, rmdir, (const char *path), (path), on_path(RMDIR, AT_FDCWD, path), -1)
PLAIN(void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t from),
      (at, size, protection, flags, fd, from), (flags & MAP_ANONYMOUS) ? 0 : on_fd(MMAP, fd), MAP_FAILED)
PLAIN(void *, mmap64, (void *at, size_t size, int protection, int flags, int fd, off64_t from),
      (at, size, protection, flags, fd, from), (flags & MAP_ANONYMOUS) ? 0 : on_fd(MMAP, fd), MAP_FAILED)
PLAIN(int, stat, (const char *path, struct stat *to), (path, to), on_path(STAT, AT_FDCWD, path), -1)
PLAIN(int, stat64, (const char *path, struct stat64 *to), (path, to), on_path(STAT, AT_FDCWD, path), -1)
PLAIN(int, lstat, (const char *path, struct stat *to), (path, to), on_path(STAT, AT_FDCWD, path), -1)
PLAIN(int, lstat64, (const char *path, struct stat64 *to), (path, to), on_path(STAT, AT_FDCWD, path), -1)
PLAIN(int, fstat, (int fd, struct stat *to), (fd, to), on_fd(STAT, fd), -1)
PLAIN(int, fstat64, (int fd, struct stat64 *to), (fd, to), on_fd(STAT, fd), -1)
PLAIN(int, fstatat, (int directory, const char *path, struct stat *to, int flags), (directory, path, to, flags),
      (flags & AT_EMPTY_PATH) && !*path ? on_fd(STAT, directory) : on_path(STAT, directory, path), -1)
PLAIN(int, fstatat64, (int directory, const char *path, struct stat64 *to, int flags), (directory, path, to, flags),
      (flags & AT_EMPTY_PATH) && !*path ? on_fd(STAT, directory) : on_path(STAT, directory, path), -1)
PLAIN(int, statx, (int directory, const char *path, int flags, unsigned mask, struct statx *to),
      (directory, path, flags, mask, to),
      ((flags & AT_EMPTY_PATH) && !*path) ? on_fd(STAT, directory) : on_path(STAT, directory, path), -1)
PLAIN(int, access, (const char *path, int mode), (path, mode), on_path(STAT, AT_FDCWD, path), -1)
PLAIN(int, statvfs64, (const char *path, struct statvfs64 *to), (path, to), on_path(STAT, AT_FDCWD, path), -1)
PLAIN(DIR *, opendir, (const char *path), (path), on_path(LIST, AT_FDCWD, path), NULL)
PLAIN(struct dirent *, readdir, (DIR *directory), (directory), on_fd(LIST, dirfd(directory)), NULL)
PLAIN(struct dirent64 *, readdir64, (DIR *directory), (directory), on_fd(LIST, dirfd(directory)), NULL)

/* The descriptor is gone in any case, as on Linux. */
int close(int fd) {
    REAL(close);
    int action = on_fd(CLOSE, fd);
    int result = real(fd);
    FAIL(action, -1)
    return result;
}
