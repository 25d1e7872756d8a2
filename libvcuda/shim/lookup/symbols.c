/* Reading the tables of loaded libraries, for questions that dlsym cannot answer: the address of the real dlsym, as
 * ours comes first; the meaning of RTLD_NEXT for a caller other than us; the name and the namespace of a library. */
#include "symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>

#define HIDDEN 0x8000 /* in a version table: not the default version of the name */

struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *hash;
    const ElfW(Half) * versions;
};

/* Addresses in a dynamic section are absolute, except where the loader did not relocate them (the vDSO). */
static const void *at(const struct link_map *map, ElfW(Addr) address)
{
    return (const void *)(address < map->l_addr ? address + map->l_addr : address);
}

static int read_tables(const struct link_map *map, struct tables *t)
{
    *t = (struct tables){0};
    for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB)
            t->symbols = at(map, d->d_un.d_ptr);
        else if (d->d_tag == DT_STRTAB)
            t->strings = at(map, d->d_un.d_ptr);
        else if (d->d_tag == DT_GNU_HASH)
            t->hash = at(map, d->d_un.d_ptr);
        else if (d->d_tag == DT_VERSYM)
            t->versions = at(map, d->d_un.d_ptr);
    }
    return t->symbols && t->strings && t->hash;
}

static uint32_t hash_of(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

static void *value_of(const struct link_map *map, const ElfW(Sym) * s)
{
    void *address = (void *)(map->l_addr + s->st_value);
    if (ELF64_ST_TYPE(s->st_info) == STT_GNU_IFUNC)
        return ((void *(*)(void))address)();
    return address;
}

/* Return the default version of `name` that this library defines; NULL: none. */
static void *defined_in(const struct link_map *map, const char *name)
{
    struct tables t;
    if (!read_tables(map, &t))
        return NULL;
    uint32_t buckets = t.hash[0], first = t.hash[1], bloom = t.hash[2], wanted = hash_of(name);
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(t.hash + 4) + bloom), *chain = bucket + buckets;
    uint32_t i = buckets ? bucket[wanted % buckets] : 0;
    for (; i >= first && i; i++) {
        uint32_t h = chain[i - first];
        const ElfW(Sym) *s = &t.symbols[i];
        int shown = s->st_shndx != SHN_UNDEF && s->st_value && !(t.versions && t.versions[i] & HIDDEN);
        if ((h | 1) == (wanted | 1) && shown && symbols_same(t.strings + s->st_name, name))
            return value_of(map, s);
        if (h & 1)
            break;
    }
    return NULL;
}

static const struct link_map *library_of(const void *address)
{
    Dl_info info;
    struct link_map *map = NULL;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

void *symbols_next(const void *address, const char *name)
{
    const struct link_map *map = library_of(address);
    void *found = NULL;
    while (map && !found && (map = map->l_next))
        found = defined_in(map, name);
    return found;
}

int symbols_behind(const void *address, const void *other)
{
    const struct link_map *map = library_of(address), *wanted = library_of(other);
    while (wanted && map && (map = map->l_next))
        if (map == wanted)
            return 1;
    return 0;
}

int symbols_elsewhere(void *handle)
{
    Lmid_t namespace = LM_ID_BASE;
    return dlinfo(handle, RTLD_DI_LMID, &namespace) == 0 && namespace != LM_ID_BASE;
}

static const char *soname_of(const struct link_map *map)
{
    struct tables t;
    if (!map || !read_tables(map, &t))
        return "";
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_SONAME)
            return t.strings + d->d_un.d_val;
    return "";
}

const char *symbols_soname(void *handle)
{
    struct link_map *map = NULL;
    return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? soname_of(map) : "";
}

const char *symbols_soname_at(const void *address, const char **path)
{
    const struct link_map *map = library_of(address);
    *path = map ? map->l_name : "";
    return soname_of(map);
}
