/* The command line of a mixed load: see mix.h. */
#include "mix.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: gpumix [options]\n\n"
    "Launches several kinds of kernels and waits for them every few launches, as ordinary programs do; prints how "
    "many\n"
    "finished, and the share of GPU time that they took by its own reckoning.\n"
    "  --kinds N            kinds of kernels, launched in turn (2; at most 16)\n"
    "  --durations-us LIST  their durations in microseconds, e.g. 50,5; used over and over for more kinds (50,5)\n"
    "  --differ HOW         function: each kind is a function of its own (default); grid: the kinds are one function "
    "with\n"
    "                       different numbers of blocks; both: every second kind is another function;\n"
    "                       argument: every second kind is the same function, told by its argument how long\n"
    "  --grid N             blocks of a kernel (1)\n"
    "  --wait-every N       launches between two waits (10)\n"
    "  --wait HOW           stream, event, device, copy (cuMemcpyDtoH) or poll (cuStreamQuery) (stream)\n"
    "  --streams N          launch on so many streams in turn (1; at most 16)\n"
    "  --cpu-us N           host work after each launch (0)\n"
    "  --calibrate          first measure how long each kind takes, without limits, and print it\n"
    "  --alone-ns LIST, --queued-ns LIST\n"
    "                       what such a calibration found; otherwise kernels are taken to last as long as they spin\n"
    "  --device N           CUDA device (0)\n"
    "  --seconds N          end after this time (default: run until SIGTERM)\n"
    "  --interval S         seconds between the printed lines, each after a whole step (1)\n"
    "  --json               one JSON object a line\n"
    "Ends with 0 on SIGTERM, SIGINT or when the time is over.\n";

static const char *const wait_names[] = {"stream", "event", "device", "copy", "poll", NULL};
static const char *const differ_names[] = {"function", "grid", "both", "argument", NULL};

/* The name's place in the list; -1: not there. */
static int find_name(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

/* Fill all kinds from the list's numbers, each times `unit`, over and over; 0 where one is missing or not positive. */
static int read_list(const char *text, double unit, uint64_t values[MIX_KINDS])
{
    unsigned count = 0;
    for (char *end; count < MIX_KINDS; text = end + 1) {
        double value = strtod(text, &end) * unit;
        if (end == text || value < 1)
            return 0;
        values[count++] = (uint64_t)value;
        if (*end != ',')
            break;
    }
    for (unsigned i = count; i < MIX_KINDS; i++)
        values[i] = values[i - count];
    return 1;
}

static int read_one(int option, const char *value, struct mix_options *o)
{
    int found = 0;
    switch (option) {
    case 'k':
        return (o->kinds = (unsigned)strtoul(value, NULL, 10)) >= 1 && o->kinds <= MIX_KINDS;
    case 'u':
        return read_list(value, 1000, o->duration_ns);
    case 'a':
        return read_list(value, 1, o->alone_ns);
    case 'q':
        return read_list(value, 1, o->queued_ns);
    case 'f':
        o->differ = (enum mix_differ)(found = find_name(differ_names, value));
        return found >= 0;
    case 'w':
        o->wait = (enum mix_wait)(found = find_name(wait_names, value));
        return found >= 0;
    case 'n':
        return (o->wait_every = (unsigned)strtoul(value, NULL, 10)) >= 1;
    case 'r':
        return (o->streams = (unsigned)strtoul(value, NULL, 10)) >= 1 && o->streams <= MIX_STREAMS;
    case 'g':
        return (o->grid = (unsigned)strtoul(value, NULL, 10)) >= 1;
    case 'c':
        o->cpu_ns = (uint64_t)(strtod(value, NULL) * 1000);
        return 1;
    case 'd':
        o->device = atoi(value);
        return 1;
    case 't':
        return (o->seconds = strtod(value, NULL)) > 0;
    case 'i':
        return (o->interval = strtod(value, NULL)) > 0;
    case 'l':
        return o->calibrate = 1;
    case 'j':
        return o->json = 1;
    default:
        return 0;
    }
}

int mix_parse(int argc, char **argv, struct mix_options *o)
{
    static const struct option names[] = {{"kinds", 1, NULL, 'k'},     {"durations-us", 1, NULL, 'u'},
                                          {"differ", 1, NULL, 'f'},    {"grid", 1, NULL, 'g'},
                                          {"wait", 1, NULL, 'w'},      {"wait-every", 1, NULL, 'n'},
                                          {"streams", 1, NULL, 'r'},   {"cpu-us", 1, NULL, 'c'},
                                          {"device", 1, NULL, 'd'},    {"alone-ns", 1, NULL, 'a'},
                                          {"queued-ns", 1, NULL, 'q'}, {"calibrate", 0, NULL, 'l'},
                                          {"interval", 1, NULL, 'i'},  {"seconds", 1, NULL, 't'},
                                          {"json", 0, NULL, 'j'},      {"help", 0, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *o = (struct mix_options){.kinds = 2, .streams = 1, .wait_every = 10, .grid = 1, .interval = 1};
    read_list("50,5", 1000, o->duration_ns);
    for (int c, index = 0; (c = getopt_long(argc, argv, "", names, &index)) != -1;) {
        if (c == 'h') {
            fputs(usage, stdout);
            exit(0);
        }
        if (read_one(c, optarg, o))
            continue;
        if (c != '?')
            fprintf(stderr, "gpumix: --%s cannot be %s\n\n", names[index].name, optarg);
        fputs(usage, stderr);
        return 0;
    }
    for (unsigned i = 0; i < MIX_KINDS; i++) {
        o->alone_ns[i] = o->alone_ns[i] ? o->alone_ns[i] : o->duration_ns[i];
        o->queued_ns[i] = o->queued_ns[i] ? o->queued_ns[i] : o->alone_ns[i];
    }
    return 1;
}
