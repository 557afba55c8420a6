/* A cheap Chat Completions upstream: fixed answers, a few microseconds a call.
 *
 *   upstream PORT [CHUNKS] [INTERVAL_MS]
 *
 * A request whose body says "stream":true gets CHUNKS frames, one every INTERVAL_MS, then usage and [DONE]; a prompt
 * that contains "[9 frames every 50 ms]" sets its own pace. Any other request gets one small completion.
 *
 * Frames are due at fixed times from the start of their stream, to the microsecond: real streams come from many
 * machines and are not in step. Timed from the previous frame, or in whole milliseconds, streams fall into step.
 *
 * One thread, one epoll. Bodies of any size are read with Content-Length and never kept. What this program does not
 * serve (a chunked request body, a request behind a stream, a caller that does not read) it refuses: one line on
 * stderr, and the connection ends, so that a measurement counts it as failed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

enum { HEAD_MOST = 8 * 1024, OVERLAP = 64, READ_AT_ONCE = 256 * 1024, EVENTS = 256, BACKLOG = 4096 };

#define USAGE                                                                                                          \
    "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":8,\"total_tokens\":20,"                                     \
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}"
#define BODY                                                                                                           \
    "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{"        \
    "\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy dog, "      \
    "again and again.\"},\"finish_reason\":\"stop\"}]," USAGE "}"
#define FRAME "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\","
#define STREAM_HEAD "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

struct text {
    char bytes[2048];
    size_t length;
};
static struct text answer, delta, last;

/* One caller's connection. `kept`: the start of a head, or the end of a body's last piece, for the next read. */
struct connection {
    int fd;
    bool in_body, asks_to_stream, is_streaming, is_closed;
    size_t body_left;
    int chunks_left;
    int chunks;
    int64_t interval_ns;
    size_t kept_length;
    char kept[HEAD_MOST];
};

/* Streams by when their next frame is due: a binary heap. */
struct due {
    int64_t at_ns;
    struct connection *connection;
};
static struct due *heap;
static size_t heap_length, heap_room;

static int usual_chunks = 20;
static int64_t usual_interval_ns = 10 * 1000000;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void append(struct text *text, const char *bytes) {
    text->length += (size_t)snprintf(text->bytes + text->length, sizeof text->bytes - text->length, "%s", bytes);
}

static void append_chunk(struct text *text, const char *frame) {
    char size[24];
    snprintf(size, sizeof size, "%zx\r\n", strlen(frame));
    append(text, size);
    append(text, frame);
    append(text, "\r\n");
}

static void compose(void) {
    char head[128];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
             strlen(BODY));
    append(&answer, head);
    append(&answer, BODY);
    append_chunk(&delta, FRAME "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"},\"finish_reason\":null}]}\n\n");
    append_chunk(&last, FRAME "\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    append_chunk(&last, FRAME "\"choices\":[]," USAGE "}\n\n");
    append_chunk(&last, "data: [DONE]\n\n");
    append(&last, "0\r\n\r\n");
}

static void push(int64_t at_ns, struct connection *connection) {
    if (heap_length == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 1024;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (!heap)
            fail("realloc");
    }
    size_t place = heap_length++;
    for (; place && heap[(place - 1) / 2].at_ns > at_ns; place = (place - 1) / 2)
        heap[place] = heap[(place - 1) / 2];
    heap[place] = (struct due){at_ns, connection};
}

static struct due pop(void) {
    struct due first = heap[0], moved = heap[--heap_length];
    size_t place = 0, below;
    while ((below = 2 * place + 1) < heap_length) {
        if (below + 1 < heap_length && heap[below + 1].at_ns < heap[below].at_ns)
            below++;
        if (heap[below].at_ns >= moved.at_ns)
            break;
        heap[place] = heap[below];
        place = below;
    }
    heap[place] = moved;
    return first;
}

/* A connection with a frame due is freed when its turn comes. */
static void end(struct connection *connection, const char *complaint) {
    if (complaint)
        fprintf(stderr, "upstream: %s\n", complaint);
    close(connection->fd);
    connection->is_closed = true;
    if (!connection->is_streaming)
        free(connection);
}

/* Send all of it. Returns false if the connection ended. */
static bool send_all(struct connection *connection, const char *bytes, size_t length) {
    ssize_t sent = send(connection->fd, bytes, length, MSG_NOSIGNAL);
    if (sent == (ssize_t)length)
        return true;
    end(connection, sent >= 0 || errno == EAGAIN ? "a caller does not read its answers" : NULL);
    return false;
}

/* Send the frame that is due, and arrange the next one. Returns false if the connection ended. */
static bool send_frame(struct due due) {
    struct connection *connection = due.connection;
    connection->is_streaming = false; /* nothing of it is in the heap now */
    if (connection->is_closed) {
        free(connection);
        return false;
    }
    if (!connection->chunks_left--)
        return send_all(connection, last.bytes, last.length);
    if (!send_all(connection, delta.bytes, delta.length))
        return false;
    connection->is_streaming = true;
    push(due.at_ns + connection->interval_ns, connection);
    return true;
}

/* Answer the request that was read. Returns false if the connection ended. */
static bool answer_request(struct connection *connection) {
    if (!connection->asks_to_stream)
        return send_all(connection, answer.bytes, answer.length);
    struct text head = {0};
    append(&head, STREAM_HEAD);
    if (!send_all(connection, head.bytes, head.length))
        return false;
    connection->chunks_left = connection->chunks;
    return send_frame((struct due){now_ns(), connection});
}

static const char *after_spaces(const char *at, const char *end_of_text) {
    while (at < end_of_text && isspace((unsigned char)*at))
        at++;
    return at;
}

/* Look for "stream":true and for a pace in a piece of the body, which begins with the end of the piece before it. */
static void read_wishes(struct connection *connection, const char *piece, size_t length) {
    const char *end_of_piece = piece + length, *at = piece;
    while ((at = memmem(at, (size_t)(end_of_piece - at), "\"stream\"", 8))) {
        at = after_spaces(at + 8, end_of_piece);
        if (at < end_of_piece && *at == ':') {
            at = after_spaces(at + 1, end_of_piece);
            if (end_of_piece - at >= 4 && !memcmp(at, "true", 4))
                connection->asks_to_stream = true;
        }
    }
    const char *every = memmem(piece, length, " frames every ", 14);
    if (!every)
        return;
    const char *number = every;
    while (number > piece && isdigit((unsigned char)number[-1]))
        number--;
    char *unit;
    long interval_ms = strtol(every + 14, &unit, 10);
    if (number > piece && number < every && number[-1] == '[' && unit + 4 <= end_of_piece && !memcmp(unit, " ms]", 4)) {
        connection->chunks = (int)strtol(number, NULL, 10);
        connection->interval_ns = interval_ms * 1000000LL;
    }
}

/* The value of a field of the head, or NULL. `head` ends with its last field's line break and a zero byte. */
static const char *field(const char *head, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line && line[2]; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, length) && line[2 + length] == ':')
            return line + 3 + length;
    return NULL;
}

/* Take one head from the text. Returns its length, 0 if it is incomplete, or -1 if the connection ended. */
static ssize_t take_head(struct connection *connection, char *text, size_t length) {
    char *blank = memmem(text, length, "\r\n\r\n", 4);
    if (!blank) {
        if (length < HEAD_MOST)
            return 0;
        end(connection, "a head is too long");
        return -1;
    }
    blank[2] = 0;
    if (field(text, "transfer-encoding")) {
        end(connection, "a chunked request body is not read; send Content-Length");
        return -1;
    }
    const char *body_length = field(text, "content-length");
    connection->body_left = body_length ? strtoull(body_length, NULL, 10) : 0;
    connection->in_body = true;
    connection->asks_to_stream = false;
    connection->chunks = usual_chunks;
    connection->interval_ns = usual_interval_ns;
    return blank + 4 - text;
}

/* Take heads and bodies from the text and answer each request. `seen`: bytes that were read before, the end of a body's
 * piece. Keeps what the next read needs. */
static void take(struct connection *connection, char *text, size_t length, size_t seen) {
    while (connection->in_body || length) {
        if (!connection->in_body) {
            ssize_t head = take_head(connection, text, length);
            if (head < 0)
                return;
            if (!head)
                break;
            text += head;
            length -= (size_t)head;
            seen = 0;
        }
        size_t here = length - seen < connection->body_left ? length - seen : connection->body_left;
        read_wishes(connection, text, seen + here);
        connection->body_left -= here;
        if (connection->body_left) {
            size_t overlap = length < OVERLAP ? length : OVERLAP;
            text += length - overlap;
            length = overlap;
            break;
        }
        text += seen + here;
        length -= seen + here;
        seen = 0;
        connection->in_body = false;
        if (!answer_request(connection))
            return;
        if (length && connection->is_streaming) {
            end(connection, "a request came behind a stream");
            return;
        }
    }
    memmove(connection->kept, text, length);
    connection->kept_length = length;
}

static void receive(struct connection *connection) {
    static char text[HEAD_MOST + READ_AT_ONCE + 1];
    size_t kept = connection->kept_length;
    memcpy(text, connection->kept, kept);
    ssize_t got = recv(connection->fd, text + kept, READ_AT_ONCE, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        end(connection, NULL);
    } else if (connection->is_streaming) {
        end(connection, "a request came behind a stream");
    } else {
        text[kept + (size_t)got] = 0; /* strtol stops here */
        take(connection, text, kept + (size_t)got, connection->in_body ? kept : 0);
    }
}

static void accept_all(int listener, int poll) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct connection *connection = calloc(1, sizeof *connection);
        if (!connection)
            fail("calloc");
        connection->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event))
            fail("epoll_ctl");
    }
    if (errno != EAGAIN && errno != ECONNABORTED)
        fail("accept4");
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, BACKLOG))
        fail("listen");
    return listener;
}

static void serve(int listener) {
    int poll = epoll_create1(0);
    struct epoll_event events[EVENTS], listening = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, listener, &listening))
        fail("epoll_ctl");
    for (;;) {
        int64_t wait_ns = heap_length ? heap[0].at_ns - now_ns() : 0;
        wait_ns = wait_ns > 0 ? wait_ns : 0;
        struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
        int ready = epoll_pwait2(poll, events, EVENTS, heap_length ? &wait : NULL, NULL);
        if (ready < 0 && errno != EINTR)
            fail("epoll_pwait2");
        for (int place = 0; place < ready; place++) {
            if (events[place].data.ptr)
                receive(events[place].data.ptr);
            else
                accept_all(listener, poll);
        }
        for (int64_t now = now_ns(); heap_length && heap[0].at_ns <= now;)
            (void)send_frame(pop());
    }
}

int main(int count, char **words) {
    if (count < 2) {
        fprintf(stderr, "usage: upstream PORT [CHUNKS] [INTERVAL_MS]\n");
        return 2;
    }
    if (count > 2)
        usual_chunks = atoi(words[2]);
    if (count > 3)
        usual_interval_ns = (int64_t)(atof(words[3]) * 1e6);
    prctl(PR_SET_TIMERSLACK, 1); /* ns; the usual 50 µs put frames of different streams in step */
    compose();
    serve(listen_on(atoi(words[1])));
}
