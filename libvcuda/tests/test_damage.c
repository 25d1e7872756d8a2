/* Pages that a claim names and that cannot be used: whatever was done to which of them, there is no CUDA without limits. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REFUSED 800
/* A start takes some ten milliseconds; a page that holds it up does so for ever. */
#define HUNG_S 60.0

static void overwrite(const char *path, off_t at, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || pwrite(fd, bytes, size, at) != (ssize_t)size)
        perror(path);
    close(fd);
}

static int cut(const char *path)
{
    return truncate(path, 100);
}

static int empty(const char *path)
{
    return truncate(path, 0);
}

static int lengthen(const char *path)
{
    struct stat st;
    return stat(path, &st) || truncate(path, st.st_size + 1);
}

static int zero_head(const char *path)
{
    static const char zeros[256];
    overwrite(path, 0, zeros, sizeof zeros);
    return 0;
}

static int spoil_magic(const char *path)
{
    overwrite(path, 0, "X", 1);
    return 0;
}

static int other_version(const char *path)
{
    overwrite(path, 8, &(uint32_t){VCUDA_ABI_VERSION + 1}, 4);
    return 0;
}

static int other_size(const char *path)
{
    overwrite(path, 12, &(uint32_t){1}, 4);
    return 0;
}

static int close_to_all(const char *path)
{
    return chmod(path, 0);
}

static int give_away(const char *path)
{
    return chmod(path, 0600) || chown(path, 12345, 12345);
}

static int link_to_itself(const char *path)
{
    char aside[500];
    snprintf(aside, sizeof aside, "%s.aside", path);
    return rename(path, aside) || symlink(aside, path);
}

static int make_directory(const char *path)
{
    return unlink(path) || mkdir(path, 0700);
}

static int make_fifo(const char *path)
{
    return unlink(path) || mkfifo(path, 0600);
}

static const struct damage {
    const char *name;
    int (*make)(const char *path);
    const char *words; /* of the line that says so */
    int as_root;       /* can only be made by root */
} damages[] = {
    {"a missing", unlink, "No such file", 0},
    {"a truncated", cut, "damaged", 0},
    {"an empty", empty, "damaged", 0},
    {"a lengthened", lengthen, "damaged", 0},
    {"a zeroed head of the", zero_head, "damaged", 0},
    {"a wrong magic of the", spoil_magic, "damaged", 0},
    {"another version of the", other_version, "damaged", 0},
    {"another size in the", other_size, "damaged", 0},
    {"an unreadable", close_to_all, "Permission denied", 0},
    {"somebody else's", give_away, "Permission denied", 1},
    {"a symbolic link for the", link_to_itself, "damaged", 0},
    {"a directory for the", make_directory, "damaged", 0},
    {"a FIFO for the", make_fifo, "damaged", 0},
};

/* Start a program under the claim that has no more rights to files than anybody; how cuInit answers, or -1e9. */
static double init_under(struct player *p, const struct claim *claim)
{
    play(p, claim, PRELOADED, "init", "plainly", NULL);
    int ended = finish_within(p, HUNG_S);
    return ended ? figure_of(p, "init") : -1e9;
}

static void try_damage(const struct damage *d, const char *page)
{
    struct claim claim;
    struct player p;
    char path[400];
    claim_make(&claim, GIB, 50);
    snprintf(path, sizeof path, "%s/%s", claim.directory, page);
    if (d->make(path) != 0)
        perror(path);
    double init = init_under(&p, &claim);
    const char *line = strstr(p.text, "libvcuda: ");
    expect(init == REFUSED && figure_of(&p, "again") == REFUSED, "%s %s page: no CUDA (%.0f)", d->name, page, init);
    expect(line && strstr(line, path) && strstr(line, d->words) && !strstr(line + 1, "libvcuda: "),
           "and one line says which page and why: %.200s", line ? line : "none");
    claim_end(&claim);
}

static void test_directories(void)
{
    struct claim claim, gone = {.directory = "/nowhere/at-all"}, none = {.directory = ""};
    struct player p;
    claim_make(&claim, GIB, 50);
    expect(init_under(&p, &claim) == 0, "under whole pages the program runs");
    expect(init_under(&p, NULL) == 0, "without a claim the library is inert");
    expect(init_under(&p, &none) == 0, "with an empty name, too");
    expect(init_under(&p, &gone) == REFUSED && strstr(p.text, "/nowhere/at-all/limits"),
           "a directory that is not there: no CUDA");
    chmod(claim.directory, 0);
    expect(init_under(&p, &claim) == REFUSED && strstr(p.text, "Permission denied"),
           "a directory that may not be entered: no CUDA");
    chmod(claim.directory, 0700);
    claim_end(&claim);
}

void test_damage(void)
{
    test_directories();
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        if (damages[i].as_root && geteuid() != 0)
            continue;
        try_damage(&damages[i], VCUDA_LIMITS_FILE);
        try_damage(&damages[i], VCUDA_USAGE_FILE);
    }
}
