/* The layout of the pages and of the helper library's structures, pinned: other programs and other languages map them. */
#include "vcuda_pages.h"

_Static_assert(sizeof(struct vcuda_limit_slot) == 128, "a slot is two cache lines");
_Static_assert(offsetof(struct vcuda_limit_slot, generation) == 40, "limit slot layout");
_Static_assert(offsetof(struct vcuda_limit_slot, core_limit) == 60, "limit slot layout");
_Static_assert(offsetof(struct vcuda_limit_slot, policy) == 72, "limit slot layout");
_Static_assert(offsetof(struct vcuda_limit_slot, memory_request) == 96, "limit slot layout");
_Static_assert(sizeof(struct vcuda_turn) == 64, "one cache line");
_Static_assert(sizeof(struct vcuda_memory_turn) == 64, "one cache line");
_Static_assert(offsetof(struct vcuda_turns, memory) == 1280, "turns layout");
_Static_assert(sizeof(struct vcuda_turns) == VCUDA_TURNS_SIZE, "turns page size");
_Static_assert(offsetof(struct vcuda_turns, turn) == 256, "turns layout");
_Static_assert(sizeof(struct vcuda_limits) == VCUDA_LIMITS_SIZE, "limits page size");
_Static_assert(offsetof(struct vcuda_limits, gen) == 16, "limits layout");
_Static_assert(offsetof(struct vcuda_limits, slot) == 256, "limits layout");
_Static_assert(sizeof(struct vcuda_gpu_usage) == 128, "two cache lines");
_Static_assert(sizeof(struct vcuda_bucket) == 64, "one cache line");
_Static_assert(sizeof(struct vcuda_process) == 2176, "process slot size");
_Static_assert(offsetof(struct vcuda_process, gpu) == 128, "process slot layout");
_Static_assert(offsetof(struct vcuda_process, imports) == 20, "process slot layout");
_Static_assert(offsetof(struct vcuda_process, imports_seen) == 32, "process slot layout");
_Static_assert(offsetof(struct vcuda_process, movable_bytes) == 56, "process slot layout");
_Static_assert(offsetof(struct vcuda_process, wanted_bytes) == 104, "process slot layout");
_Static_assert(offsetof(struct vcuda_gpu_usage, imported_bytes) == 112, "GPU usage layout");
_Static_assert(offsetof(struct vcuda_usage, clearings) == 24, "usage layout");
_Static_assert(offsetof(struct vcuda_usage, process) == 4096, "usage layout");
_Static_assert(sizeof(struct vcuda_usage) == VCUDA_USAGE_SIZE, "usage page size");
_Static_assert(sizeof(struct vcuda_limit) == 112, "ctypes mirror");
_Static_assert(sizeof(struct vcuda_lending) == 56, "ctypes mirror");
_Static_assert(sizeof(struct vcuda_totals) == 104, "ctypes mirror");
_Static_assert(sizeof(struct vcuda_process_info) == 32, "ctypes mirror");
_Static_assert(sizeof(struct vcuda_arrival) == 16, "ctypes mirror");
