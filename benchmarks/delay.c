/* delay LISTEN-PORT TO-PORT MICROSECONDS: a network on loopback that holds each byte so long, each way. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1024, SLOT_BYTES = 256 * 1024 };

struct slot {
    int64_t due_ns;
    ssize_t length;
    char *data;
};

/* One direction: a reader that stamps what it reads, a writer that waits for the stamp. */
struct way {
    int from, to;
    struct slot slots[SLOTS];
    unsigned head, tail;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static int64_t delay_ns;

static int64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void *read_all(void *argument)
{
    struct way *way = argument;
    for (;;) {
        pthread_mutex_lock(&way->lock);
        while (way->head - way->tail == SLOTS)
            pthread_cond_wait(&way->changed, &way->lock);
        struct slot *slot = &way->slots[way->head % SLOTS];
        pthread_mutex_unlock(&way->lock);
        slot->data = slot->data ? slot->data : malloc(SLOT_BYTES);
        slot->length = slot->data ? read(way->from, slot->data, SLOT_BYTES) : -1;
        slot->due_ns = now_ns() + delay_ns;
        pthread_mutex_lock(&way->lock);
        way->head++;
        pthread_cond_broadcast(&way->changed);
        pthread_mutex_unlock(&way->lock);
        if (slot->length <= 0)
            return NULL;
    }
}

static void *write_all(void *argument)
{
    struct way *way = argument;
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        pthread_mutex_lock(&way->lock);
        while (way->head == way->tail)
            pthread_cond_wait(&way->changed, &way->lock);
        struct slot *slot = &way->slots[way->tail % SLOTS];
        pthread_mutex_unlock(&way->lock);
        struct timespec due = {slot->due_ns / 1000000000LL, slot->due_ns % 1000000000LL};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
            continue;
        ssize_t done = 0, count = 1;
        for (; done < slot->length && count > 0; done += count)
            count = write(way->to, slot->data + done, (size_t)(slot->length - done));
        if (slot->length <= 0 || count <= 0) {
            shutdown(way->to, SHUT_WR);
            return NULL;
        }
        pthread_mutex_lock(&way->lock);
        way->tail++;
        pthread_cond_broadcast(&way->changed);
        pthread_mutex_unlock(&way->lock);
    }
}

static void carry(int from, int to)
{
    struct way *way = calloc(1, sizeof *way);
    pthread_t thread;
    if (!way)
        return;
    way->from = from;
    way->to = to;
    pthread_mutex_init(&way->lock, NULL);
    pthread_cond_init(&way->changed, NULL);
    pthread_create(&thread, NULL, read_all, way);
    pthread_create(&thread, NULL, write_all, way);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: delay LISTEN-PORT TO-PORT MICROSECONDS\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    delay_ns = atoll(argv[3]) * 1000;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}, there = here;
    here.sin_port = htons((uint16_t)atoi(argv[1]));
    there.sin_port = htons((uint16_t)atoi(argv[2]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 16))
        return 1;
    for (;;) {
        int client = accept(listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
        if (client < 0 || server < 0 || connect(server, (struct sockaddr *)&there, sizeof there))
            return 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        carry(client, server);
        carry(server, client);
    }
}
