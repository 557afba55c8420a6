/* Calls at a steady rate, whatever the answers take: a load in an open loop.
 *
 *   open_loop PORT RATE SECONDS < REQUEST
 *
 * Call number n is due n / RATE after the start, and its latency counts from then until its whole answer was read. So a
 * pause, of the gateway or of this program, counts for each call that was due in it (no coordinated omission). A call
 * takes a free connection, or opens one. Prints one line of JSON, latencies in microseconds. An answer that is not 200,
 * or none, is counted as failed.
 *
 * Runs with real-time priority where it may: it stands for other machines, which do not wait for this one's programs.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_MOST = 64 * 1024, REQUEST_MOST = 1024 * 1024, EVENTS = 64, OPENED_BEFORE = 8 };
static const int64_t GRACE_NS = 20000000000; /* for the last answers */

struct connection {
    int fd;
    bool is_busy;
    int64_t due_ns;
    size_t length;
    struct connection *next_free;
    char answer[ANSWER_MOST + 1];
};

static struct connection *first_free;
static int port, poller;
static char request[REQUEST_MOST];
static size_t request_length;
static int64_t *latencies_ns;
static long answered, failed, opened;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct connection *open_connection(void) {
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        fail("calloc");
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, connection->fd, &event))
        fail("epoll_ctl");
    opened++;
    return connection;
}

static void release(struct connection *connection) {
    connection->is_busy = false;
    connection->length = 0;
    connection->next_free = first_free;
    first_free = connection;
}

static void drop(struct connection *connection) {
    if (connection->is_busy)
        failed++;
    else
        for (struct connection **place = &first_free; *place; place = &(*place)->next_free)
            if (*place == connection) {
                *place = connection->next_free;
                break;
            }
    close(connection->fd);
    free(connection);
}

static void call(int64_t due_ns) {
    struct connection *connection = first_free ? first_free : open_connection();
    if (first_free)
        first_free = first_free->next_free;
    connection->is_busy = true;
    connection->due_ns = due_ns;
    if (send(connection->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length)
        drop(connection);
}

/* Whether the answer is whole: by its Content-Length, or by its last chunk. */
static bool is_whole(const char *answer, size_t length) {
    const char *body = strstr(answer, "\r\n\r\n");
    if (!body)
        return false;
    body += 4;
    const char *said = strcasestr(answer, "\r\ncontent-length:");
    if (said && said < body)
        return length - (size_t)(body - answer) >= strtoull(said + 17, NULL, 10);
    return length >= 5 && !memcmp(answer + length - 5, "0\r\n\r\n", 5);
}

static void receive(struct connection *connection) {
    size_t room = ANSWER_MOST - connection->length;
    ssize_t got = recv(connection->fd, connection->answer + connection->length, room, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0 || !connection->is_busy) {
        drop(connection);
        return;
    }
    connection->length += (size_t)got;
    connection->answer[connection->length] = 0;
    if (!is_whole(connection->answer, connection->length))
        return;
    if (strncmp(connection->answer, "HTTP/1.1 200", 12)) {
        drop(connection);
        return;
    }
    latencies_ns[answered++] = now_ns() - connection->due_ns;
    release(connection);
}

static void await(int64_t until_ns) {
    struct epoll_event events[EVENTS];
    int64_t wait_ns = until_ns - now_ns();
    wait_ns = wait_ns > 0 ? wait_ns : 0;
    struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
    int ready = epoll_pwait2(poller, events, EVENTS, &wait, NULL);
    if (ready < 0 && errno != EINTR)
        fail("epoll_pwait2");
    for (int place = 0; place < ready; place++)
        receive(events[place].data.ptr);
}

static int compare(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* The latency that `share` of the answered calls did not exceed. */
static double quantile_us(double share) {
    long place = (long)(share * (double)answered);
    return (double)latencies_ns[place < answered ? place : answered - 1] / 1000;
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: open_loop PORT RATE SECONDS < REQUEST\n");
        return 2;
    }
    port = atoi(words[1]);
    double rate = atof(words[2]);
    long calls = (long)(rate * atof(words[3]));
    request_length = fread(request, 1, sizeof request, stdin);
    latencies_ns = calloc((size_t)calls, sizeof *latencies_ns);
    poller = epoll_create1(0);
    prctl(PR_SET_TIMERSLACK, 1);
    bool is_real_time = !sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    for (int number = 0; number < OPENED_BEFORE; number++)
        release(open_connection());
    int64_t start_ns = now_ns() + 10000000, due_ns = start_ns;
    for (long made = 0; made < calls;) {
        await(due_ns);
        for (; made < calls && due_ns <= now_ns(); due_ns = start_ns + (int64_t)((double)++made * 1e9 / rate))
            call(due_ns);
    }
    for (int64_t end_ns = now_ns() + GRACE_NS; answered + failed < calls && now_ns() < end_ns;)
        await(now_ns() + 1000000);
    failed = calls - answered;
    qsort(latencies_ns, (size_t)answered, sizeof *latencies_ns, compare);
    if (!answered) {
        fprintf(stderr, "open_loop: none of %ld calls was answered\n", calls);
        return 1;
    }
    printf("{\"requests\": %ld, \"failed\": %ld, \"connections\": %ld, \"is_real_time\": %s, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"p999_us\": %.1f, \"most_us\": %.1f}\n",
           calls, failed, opened, is_real_time ? "true" : "false", quantile_us(0.5), quantile_us(0.99),
           quantile_us(0.999), quantile_us(1));
}
