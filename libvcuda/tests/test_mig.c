/* The simulated driver's MIG: tables, placements, errors, and programs in instances, under libvcuda too. */
#include "harness.h"
#include "nvidia_mig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char h200[] = "--name mig --gpus 2 --model 'NVIDIA H200' --mig 0";

static void make(struct player *p, const char *profile_id, const char *start, const char *size)
{
    play(p, NULL, BARE, "mig_make", profile_id, start, size, NULL);
    finish(p);
}

/* Remember the device that a player has made: by its bytes, and as programs name it. */
static void read_uuid(const struct player *p, uint8_t uuid[16], char text[48])
{
    char *at = text + sprintf(text, "MIG-"), name[16];
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "uuid%d", i);
        uuid[i] = (uint8_t)figure_of(p, name);
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    }
}

static void test_tables(void)
{
    struct player p;
    play(&p, NULL, BARE, "mig_look", NULL);
    finish(&p);
    expect(figure_of(&p, "mode") == 1, "a GPU is in MIG mode as the node was made");
    expect(figure_of(&p, "placements") == 7 + 7 + 4 + 3 + 2 + 1 + 1, "its profiles have their placements: %.0f",
           figure_of(&p, "placements"));
    expect(figure_of(&p, "left19") == 7 && figure_of(&p, "left9") == 2 && figure_of(&p, "left0") == 1,
           "an empty GPU has room for 7 of 1g, 2 of 3g, 1 of 7g");
    harness_use_node("--name plain --gpus 1 --model 'NVIDIA A100-SXM4-40GB'");
    make(&p, "19", "0", "1");
    expect(figure_of(&p, "result") == 3, "a GPU that is not in MIG mode gets no instance: %.0f",
           figure_of(&p, "result"));
}

static void test_placements(void)
{
    struct player p;
    harness_use_node(h200);
    make(&p, "5", "0", "4");
    expect(figure_of(&p, "result") == 0 && figure_of(&p, "compute") == 0, "a 4g instance is made at 0");
    expect(figure_of(&p, "second") == NVML_ERROR_INSUFFICIENT_RESOURCES, "of one compute instance");
    make(&p, "9", "0", "4");
    expect(figure_of(&p, "result") == NVML_ERROR_INSUFFICIENT_RESOURCES, "a 3g does not fit over it");
    make(&p, "9", "2", "4");
    expect(figure_of(&p, "result") == 2, "a 3g starts at 0 or 4 only: %.0f", figure_of(&p, "result"));
    make(&p, "9", "4", "4");
    expect(figure_of(&p, "result") == 0 && figure_of(&p, "start") == 4, "a 3g fits beside it, at 4");
    play(&p, NULL, BARE, "mig_look", NULL);
    finish(&p);
    expect(figure_of(&p, "left19") == 0 && figure_of(&p, "left14") == 0, "then nothing fits any more");
    harness_use_node(h200);
    make(&p, "9", "0", "4");
    make(&p, "5", "0", "4");
    expect(figure_of(&p, "result") == NVML_ERROR_INSUFFICIENT_RESOURCES, "a 4g does not fit where a 3g is at 0");
    make(&p, "20", "4", "1");
    make(&p, "20", "5", "1");
    expect(figure_of(&p, "result") == NVML_ERROR_INSUFFICIENT_RESOURCES, "one instance has the media extensions");
}

static void test_programs(void)
{
    struct player p, q, holder;
    struct claim claim;
    uint8_t plain[16], uuid[2][16];
    char text[2][48];
    harness_use_node(h200);
    make(&p, "19", "0", "1");
    read_uuid(&p, uuid[0], text[0]);
    make(&q, "9", "4", "4");
    read_uuid(&q, uuid[1], text[1]);
    expect(memcmp(uuid[0], uuid[1], 16) != 0 && figure_of(&p, "is_mig") == 1, "each instance has a UUID of its own");
    setenv("CUDA_VISIBLE_DEVICES", text[0], 1);
    play(&p, NULL, BARE, "mig_program", NULL);
    finish(&p);
    expect(figure_of(&p, "devices") == 1 && figure_of(&p, "multiprocessors") == 16 &&
               figure_of(&p, "total") == 16384.0 * MIB,
           "a program sees the instance that it names: %.0f MiB, %.0f multiprocessors", figure_of(&p, "total") / MIB,
           figure_of(&p, "multiprocessors"));
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    play(&p, NULL, BARE, "mig_program", NULL);
    finish(&p);
    expect(figure_of(&p, "devices") == 0, "a GPU in MIG mode is no device itself");
    setenv("CUDA_VISIBLE_DEVICES", text[1], 1);
    play(&holder, NULL, BARE, "mig_program", "stay", NULL);
    wait_for(&holder, "total");
    play(&p, NULL, BARE, "mig_look", NULL);
    finish(&p);
    expect(figure_of(&p, "processes") == 1 && figure_of(&p, "in_instance") == figure_of(&q, "id"),
           "the GPU shows the process, and in which instance it is");
    char id[16];
    snprintf(id, sizeof id, "%.0f", figure_of(&q, "id"));
    play(&p, NULL, BARE, "mig_remove", id, NULL);
    finish(&p);
    expect(figure_of(&p, "whole") == NVML_ERROR_IN_USE && figure_of(&p, "compute") == NVML_ERROR_IN_USE,
           "an instance in use is not removed");
    kill(holder.pid, SIGKILL);
    finish(&holder);
    play(&p, NULL, BARE, "mig_remove", id, NULL);
    finish(&p);
    expect(figure_of(&p, "compute") == 0 && figure_of(&p, "instance") == 0, "one that nobody uses is");
    play(&p, NULL, BARE, "mig_program", NULL);
    finish(&p);
    expect(figure_of(&p, "devices") == 0, "and is no device from then on");
    /* Under libvcuda, whose page names the instance. */
    memcpy(plain, gpu_uuid, 16);
    memcpy(gpu_uuid, uuid[0], 16);
    setenv("CUDA_VISIBLE_DEVICES", text[0], 1);
    claim_make(&claim, 4 * GIB, 100);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "34359738368", NULL);
    finish(&p);
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") > 0 && figure_of(&p, "got") < 4.0 * GIB,
           "a claim on an instance ends at its limit: %.0f MiB", figure_of(&p, "got") / MIB);
    claim_end(&claim);
    memcpy(gpu_uuid, plain, 16);
    play(&p, NULL, BARE, "fill", "plain", "67108864", "34359738368", NULL);
    finish(&p);
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") > 15.0 * GIB && figure_of(&p, "got") < 16.0 * GIB,
           "control: without the library it ends at the instance's memory: %.0f MiB", figure_of(&p, "got") / MIB);
    unsetenv("CUDA_VISIBLE_DEVICES");
}

void test_mig(void)
{
    if (on_real_gpu)
        return;
    if (!harness_use_node(h200)) {
        expect(0, "a node with a GPU in MIG mode is made");
        return;
    }
    test_tables();
    test_placements();
    test_programs();
    harness_use_node("");
}
