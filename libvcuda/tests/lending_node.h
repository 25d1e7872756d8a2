/* A claim that borrows memory and follows this program's orders; or one beside an owner, under an arbiter. */
#ifndef TESTS_LENDING_NODE_H
#define TESTS_LENDING_NODE_H

#include "arbiter_node.h"

#define REQUEST (context_cost + 384 * MIB)
#define BLOCK "4194308" /* more than two granules, and not a multiple of one */

/* ---- One claim, whose orders this program gives ---- */
extern struct vcuda_turns *lending_turns;
void lending_set_borrower(struct claim *claim, uint64_t request, uint64_t limit, uint64_t host);
void lending_begin(struct claim *claim, uint64_t request, uint64_t limit, uint64_t host);
void lending_end(struct claim *claim);
void lending_order(uint64_t give, uint32_t back);
/* Wait until this many bytes are out; return 0 if that does not become so. */
int lending_out_becomes(const struct claim *claim, uint64_t bytes, double seconds);

struct vcuda_lending lending_of(const struct claim *claim);
uint64_t used_by(const struct claim *claim);

/* ---- Claim 0 owns half of the GPU; claim 1 borrows, and has all but an eighth of the GPU ---- */
extern uint64_t lending_whole; /* of the GPU */
char *lending_text(uint64_t bytes);
void lending_begin_pair(void);
void lending_end_pair(void);
/* Keep what is lent from leaving; let it leave. */
void lending_hold_fast(void);
void lending_let_go(void);
void lending_play_owner(double seconds);
void lending_expect_sound(const char *after); /* end the borrower and judge it */
uint64_t out_of_borrower(void);
int nothing_out(void);
int something_out(void);
int owner_wants(void);

#endif
