/* Making and mapping page files.
 *
 * A page appears under its name only when it is complete: it is written to a temporary name in the same directory and
 * linked. link(2) rather than rename(2), because rename would replace a page that processes have mapped already.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

int page_file_make(const char *path, const void *contents, size_t size, mode_t mode)
{
    char temporary[4096];
    int n = snprintf(temporary, sizeof temporary, "%s.new-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return -ENAMETOOLONG;
    unlink(temporary);
    int fd = open(temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int error = write_all(fd, contents, size);
    /* fchmod, because open's mode passes the umask and changing the umask is not for a library. */
    if (!error && fchmod(fd, mode) != 0)
        error = -errno;
    close(fd);
    if (!error && link(temporary, path) != 0)
        error = -errno;
    unlink(temporary);
    return error;
}

int page_file_map(const char *path, size_t size, int writable, void **map)
{
    /* O_NONBLOCK: a FIFO in a page's place must hold nobody up. */
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ELOOP || errno == EISDIR || errno == ENXIO ? -EBADMSG : -errno;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (size_t)st.st_size != size) {
        close(fd);
        return -EBADMSG;
    }
    void *p = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    int error = p == MAP_FAILED ? -errno : 0;
    close(fd);
    if (!error)
        *map = p;
    return error;
}
