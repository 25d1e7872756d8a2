/* No test: what calls a driver makes when memory is exported, imported and given back, and what the account and NVML say after
 * each step. For a driver that does it in another order than those known. */
#include "shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char path[400];

/* What was written since the last time. */
static void print_trace(long *from)
{
    char line[600];
    FILE *file = fopen(path, "re");
    if (!file || fseek(file, *from, SEEK_SET))
        return;
    while (fgets(line, sizeof line, file))
        fputs(line, stdout);
    *from = ftell(file);
    fclose(file);
}

static void trace(const char *sentence, const char *const *lines)
{
    struct claim claim;
    struct circle circle;
    long from = 0;
    claim_make(&claim, 8 * GIB, 100);
    snprintf(path, sizeof path, "%s/trace", claim.directory);
    setenv("VCUDA_TEST_IOTRACE", path, 1);
    circle_begin(&circle, &claim);
    circle.tells = 1;
    printf("\n--- %s\n", sentence);
    for (; *lines; lines++) {
        char who[16];
        snprintf(who, sizeof who, "%c close -1", **lines);
        if (!circle.party[**lines - 'A'].is_running) {
            circle_do(&circle, who);
            printf("        (%c began)\n", **lines);
            FILE *file = fopen(path, "re");
            if (file && !fseek(file, 0, SEEK_END))
                from = ftell(file);
            if (file)
                fclose(file);
        }
        circle_do(&circle, *lines);
        print_trace(&from);
        pause_s(0.5); /* for the watchers */
        printf("      half a second later: charged %.0f, used %.0f MiB\n", circle_charged(&circle, &claim),
               circle_real(&circle));
    }
    circle_end(&circle);
    claim_end(&claim);
}

#define TRACE(sentence, ...) trace(sentence, (const char *const[]){__VA_ARGS__, NULL})

void test_ioctls(void)
{
    int before = simulated_kernel;
    simulated_kernel = !on_real_gpu;
    preload_behind = "iotrace.so";
    TRACE("made, exported, closed, released", "A make 0 256", "A export 0 0", "A close 0", "A release 0");
    TRACE("made, exported, released, closed", "A make 0 256", "A export 0 0", "A release 0", "A close 0");
    TRACE("exported twice, mapped", "A make 0 256", "A map 0", "A export 0 0", "A export 0 1", "A release 0",
          "A unmap 0", "A close 0", "A close 1");
    TRACE("imported, its maker killed", "B take 2", "A make 0 256", "A export 0 0", "A send 0 B", "B receive 0",
          "B import 0 0", "B close 0", "B map 0", "A kill", "B unmap 0", "B release 0");
    TRACE("imported, its maker gone by exit, the descriptor open", "B take 2", "A make 0 256", "A export 0 0",
          "A send 0 B", "B receive 0", "B import 0 0", "A exit", "B release 0", "B close 0");
    TRACE("held by a descriptor alone", "B take 2", "A make 0 256", "A export 0 0", "A send 0 B", "A kill",
          "B receive 0", "B import 0 0", "B release 0", "B close 0");
    TRACE("an older IPC handle", "B take 2", "A take 256", "A ipcget", "B ipcopen", "A kill", "B ipcclose");
    TRACE("an older IPC handle, its maker freed first", "B take 2", "A take 256", "A ipcget", "B ipcopen", "A give",
          "B ipcclose");
    preload_behind = NULL;
    simulated_kernel = before;
}
