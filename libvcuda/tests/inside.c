/* See inside.h. The symbols are not exported, so the dynamic linker does not know them: the file's own table does. */
#include "inside.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct found {
    uintptr_t base;
    char path[4096];
};

static int is_library(struct dl_phdr_info *info, size_t size, void *out)
{
    struct found *found = out;
    const char *name = strrchr(info->dlpi_name, '/');
    (void)size;
    if (!name || strcmp(name, "/libvcuda.so") != 0)
        return 0;
    found->base = info->dlpi_addr;
    snprintf(found->path, sizeof found->path, "%s", info->dlpi_name);
    return 1;
}

static uintptr_t value_in(const char *file, const char *symbol)
{
    const ElfW(Ehdr) *head = (const void *)file;
    const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols = (const void *)(file + sections[i].sh_offset);
        const char *names = file + sections[sections[i].sh_link].sh_offset;
        for (size_t at = 0; at < sections[i].sh_size / sizeof *symbols; at++)
            if (symbols[at].st_shndx != SHN_UNDEF && !strcmp(names + symbols[at].st_name, symbol))
                return symbols[at].st_value;
    }
    return 0;
}

void *inside_find(const char *symbol)
{
    struct found found = {0};
    struct stat st;
    uintptr_t value = 0;
    if (!dl_iterate_phdr(is_library, &found))
        return NULL;
    int fd = open(found.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *file = fstat(fd, &st) ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return NULL;
    value = value_in(file, symbol);
    munmap(file, (size_t)st.st_size);
    return value ? (void *)(found.base + value) : NULL;
}
