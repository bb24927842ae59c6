/* A crowd of clients that come and go, from many addresses of the loopback network.
 *
 * usage: crowd cycles PORT SOURCES COUNT CONCURRENCY silent|request
 *        crowd paced  PORT SOURCES PER_SECOND SECONDS
 *
 * cycles: COUNT connections, CONCURRENCY of them at a time. Each connects, with "request" asks for ApiVersions and
 *         takes the reply, then half-closes and waits for the other side's end. A new one begins when one has ended,
 *         so nothing piles up in the kernel, and everything that is counted was really looked at.
 * paced:  PER_SECOND connections, at their times, each closed as soon as it is there, for SECONDS.
 *
 * Prints one JSON line at the end: opened (handshake done), replied, ended (by the other side, cleanly), reset,
 * failed (no handshake), skipped (paced: not begun, since too many were still on their way), and the time taken.
 * Source addresses are 127.0.1.1, 127.0.1.2 ... so that each side of a proxy has ports enough.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#define PACED_AT_A_TIME 2000

enum state { CONNECTING, AWAIT_REPLY, AWAIT_END };

struct client {
    int fd;
    enum state state;
    uint32_t got;
};

static const uint8_t api_versions[] = {0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff};

static int poller, port, sources, asks, paced;
static uint64_t begun, opened, replied, ended, reset_count, failed, skipped, on_their_way;
static struct client *clients;

static _Noreturn void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void watch(struct client *client, uint32_t events, int op) {
    struct epoll_event event = {.events = events, .data.ptr = client};
    if (epoll_ctl(poller, op, client->fd, &event)) die("epoll_ctl");
}

static void begin(struct client *client) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) die("socket");
    uint32_t number = (uint32_t)(begun++ % (uint64_t)sources);
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    from.sin_addr.s_addr = htonl(0x7f000100u + 0x100u * (number / 250) + 1 + number % 250);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&from, sizeof from)) die("bind");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) die("connect");
    *client = (struct client){.fd = fd, .state = CONNECTING};
    on_their_way++;
    watch(client, EPOLLOUT, EPOLL_CTL_ADD);
}

static void finish(struct client *client) {
    close(client->fd);
    client->fd = -1;
    on_their_way--;
}

static void half_close(struct client *client) {
    shutdown(client->fd, SHUT_WR);
    client->state = AWAIT_END;
    watch(client, EPOLLIN, EPOLL_CTL_MOD);
}

static void connected(struct client *client) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        /* A listener that resets what it does not want may do so before we look. */
        if (error == ECONNRESET) opened++, reset_count++;
        else failed++;
        finish(client);
        return;
    }
    opened++;
    if (paced) {
        finish(client);
    } else if (asks) {
        if (send(client->fd, api_versions, sizeof api_versions, MSG_NOSIGNAL) < 0) {
            reset_count++;
            finish(client);
            return;
        }
        client->state = AWAIT_REPLY;
        watch(client, EPOLLIN, EPOLL_CTL_MOD);
    } else {
        half_close(client);
    }
}

static void readable(struct client *client) {
    static uint8_t input[65536];
    static uint32_t reply_bytes;     /* every reply is the same; the first tells its size */
    ssize_t n = recv(client->fd, input, sizeof input, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (n == 0) ended++;
        else reset_count++;
        finish(client);
        return;
    }
    if (client->state != AWAIT_REPLY) {
        fprintf(stderr, "unexpected bytes\n");
        exit(1);
    }
    if (!client->got && n >= 4) {
        uint32_t size = (uint32_t)input[0] << 24 | (uint32_t)input[1] << 16 | (uint32_t)input[2] << 8 | input[3];
        reply_bytes = size + 4;
    }
    client->got += (uint32_t)n;
    if (client->got >= reply_bytes) {
        replied++;
        half_close(client);
    }
}

int main(int argc, char **argv) {
    if (argc < 6) { fprintf(stderr, "usage: see the source\n"); return 2; }
    paced = !strcmp(argv[1], "paced");
    port = atoi(argv[2]);
    sources = atoi(argv[3]);
    uint64_t count = strtoull(argv[4], NULL, 10);
    int width = paced ? PACED_AT_A_TIME : atoi(argv[5]);
    double per_second = 0;
    if (paced) {
        per_second = atof(argv[4]);
        count = (uint64_t)(per_second * atof(argv[5]));
    } else {
        asks = argc > 6 && !strcmp(argv[6], "request");
    }
    if (sources < 1 || width < 1) { fprintf(stderr, "usage: see the source\n"); return 2; }
    poller = epoll_create1(EPOLL_CLOEXEC);
    clients = calloc((size_t)width, sizeof *clients);
    if (poller < 0 || !clients) die("start");
    for (int i = 0; i < width; i++) clients[i].fd = -1;
    int64_t started = now_ns();
    uint64_t done = 0, due = 0;
    int next = 0;
    if (!paced)
        for (int i = 0; i < width && begun < count; i++) begin(&clients[i]);
    while (paced ? due < count || on_their_way : done < count) {
        struct epoll_event events[256];
        int timeout = -1;
        if (paced) {
            uint64_t until_now = (uint64_t)((double)(now_ns() - started) / 1e9 * per_second);
            if (until_now > count) until_now = count;
            for (; due < until_now; due++) {
                int tries = 0;
                while (clients[next].fd >= 0 && tries++ < width) next = (next + 1) % width;
                if (clients[next].fd >= 0) skipped++;
                else begin(&clients[next]);
            }
            timeout = due < count ? 1 : 100;
            if (due >= count && now_ns() - started > (int64_t)((double)count / per_second * 1e9) + 3000000000) break;
        }
        int n = epoll_wait(poller, events, 256, timeout);
        for (int i = 0; i < n; i++) {
            struct client *client = events[i].data.ptr;
            if (client->state == CONNECTING) connected(client);
            else readable(client);
            if (client->fd < 0) {
                done++;
                if (!paced && begun < count) begin(client);
            }
        }
    }
    printf("{\"opened\": %lu, \"replied\": %lu, \"ended\": %lu, \"reset\": %lu, \"failed\": %lu, \"skipped\": %lu, "
           "\"elapsed_ns\": %ld}\n", opened, replied, ended, reset_count, failed, skipped, now_ns() - started);
    return 0;
}
