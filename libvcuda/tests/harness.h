/* What the tests stand on. The suite starts itself again, preloaded and under a claim, once per process that a behaviour
 * needs; that process plays a *role* and prints `name value` lines; the suite judges. One printed line per behaviour. */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include "pages.h"

#include <stdint.h>
#include <sys/types.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

struct claim {
    char directory[256];
    struct vcuda_limits *limits;
    struct vcuda_usage *usage;
    uint64_t generation;
};

struct player {
    pid_t pid;
    int fd, status;
    size_t length;
    char text[32768];
};

enum { BARE = 0, PRELOADED = 1 };
/* Libraries of build/tests to preload in front of ours and behind it; NULL: none. */
extern const char *preload_before, *preload_behind;
/* The library itself, in build. */
extern const char *preload_library;

/* A sanitizer's build is several times as slow: what the clock says of it is not the library's doing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

extern int on_real_gpu;
/* Simulated driver only: processes get the simulated kernel too, so that memory is accounted at its boundary. */
extern int simulated_kernel;
extern uint8_t gpu_uuid[16];
extern uint64_t context_cost; /* bytes, of a process that has launched nothing */

int harness_begin(void); /* 0: cannot test here */
/* A node of its own for a chapter, made with these options, which processes use from then on; empty: the usual one. */
int harness_use_node(const char *options);
int harness_end(void); /* the exit status */
void expect(int ok, const char *sentence, ...) __attribute__((format(printf, 2, 3)));

void claim_make(struct claim *claim, uint64_t memory_bytes, uint32_t core);
void claim_set(struct claim *claim, uint64_t memory_bytes, uint32_t core);
void claim_end(struct claim *claim);
/* How the claim's last process was accounted. */
int was_by_kernel(const struct claim *claim);

/* Start a role (NULL claim: no GPUCLOUD_CLAIM_DIR). The arguments end with NULL. */
void play(struct player *player, const struct claim *claim, int preloaded, const char *role, ...);
void finish(struct player *player);                                       /* read all, wait */
int finish_within(struct player *player, double seconds);                 /* 0: it hung, and was killed */
int wait_for(struct player *player, const char *name);                    /* until that line was printed */
int says_within(struct player *player, const char *name, double seconds); /* 0: not in time */
double figure_of(const struct player *player, const char *name);          /* -1e9: never said */
/* By NVML, summed over processes. An H200's own figure rose 2 GiB higher while eight processes allocated and freed as fast
 * as they could; why was not found out (freed memory that counts until it is cleared, perhaps). */
uint64_t gpu_memory_used(void);
uint64_t gpu_memory_of(unsigned index, pid_t pid); /* one process (0: all), one GPU */
uint64_t gpu_memory_real(unsigned index);          /* of the GPU itself: also what no process is shown with */
/* VCUDA_TEST_COUNT, or this; the seed of this run's dice, VCUDA_TEST_SEED or a new one. */
unsigned long test_count(unsigned long usual);
unsigned test_seed(void);
double now_s(void);
void pause_s(double seconds);

/* roles*.c */
int role_play(int argc, char **argv);
int role_compute(int argc, char **argv);
int role_bugs(int argc, char **argv);
int role_kill(int argc, char **argv); /* -1: not one of its roles */
int role_fork(int argc, char **argv);
int role_kernel(int argc, char **argv);
int role_calls(int argc, char **argv); /* -1: not one of its roles */
int role_faults(int argc, char **argv);
int role_syscalls(int argc, char **argv);
int role_arbiter(int argc, char **argv); /* -1: not one of its roles */
int role_lookup(int argc, char **argv);  /* -1: not one of its roles */
int role_namespaces(int argc, char **argv);
int role_copies(int argc, char **argv);
int role_shared(int argc, char **argv);  /* -1: not one of its roles */
int role_legacy(int argc, char **argv);  /* -1: not one of its roles */
int role_views(int argc, char **argv);   /* -1: not one of its roles */
int role_mix(int argc, char **argv);     /* -1: not one of its roles */
int role_ahead(int argc, char **argv);   /* -1: not one of its roles */
int role_suspend(int argc, char **argv); /* -1: not one of its roles */
int role_memops(int argc, char **argv);  /* -1: not one of its roles */
int role_mig(int argc, char **argv);     /* -1: not one of its roles */
int role_lending(int argc, char **argv); /* -1: not one of its roles */
int role_lent(int argc, char **argv);    /* -1: not one of its roles */

/* the chapters */
void test_pages(void);
void test_lookup(void);
void test_namespaces(void); /* a part of the chapter about lookup */
void test_memory(void);
void test_views(void);
void test_compat(void);
void test_legacy(void);
void test_compute(void);
void test_mps(void);
void test_life(void);
void test_damage(void);
void test_bugs(void);
void test_kernel(void);
void test_calls(void);
void test_exports(void);
void test_ioctls(void);
void test_drift(void);
void test_syscalls(void);
void test_sweep(void);
void test_mix(void);
void test_charges(void);
void test_kill(void);
void test_rounds(void);
void test_ahead(void);
void test_arbiter(void);
void test_turns(void);
void test_copies(void);
void test_forks(void);
void test_faults(void);
void test_suspend(void);
void test_lending(void);
void test_lent(void);
void test_lent_orders(void);
void test_memops(void);
void test_mig(void);
void test_movable(void);
void test_move(void); /* a part of the chapter about suspension */

#endif
