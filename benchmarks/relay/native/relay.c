/* The floor: a TCP relay that only copies. One thread, epoll, one shared buffer, no idea of frames.
 *
 * usage: relay LISTEN_PORT UPSTREAM_PORT
 */
#include "wire.h"

#define BUFFER (128 * 1024)

/* One direction's source socket; what it could not hand over yet waits in `held`. */
struct side {
    int fd, closed;
    uint32_t armed;
    struct side *peer;
    uint8_t *held;               /* bytes read from the peer, not yet written to this side */
    size_t held_at, held_len;
};

static int poller;
static uint8_t shared[BUFFER];
static struct side *graveyard;   /* a pair closed in this round may still have an event in it */

static void arm(struct side *side, uint32_t events, int op) {
    struct epoll_event event = {.events = events, .data.ptr = side};
    if (side->armed == events && op == EPOLL_CTL_MOD) return;
    side->armed = events;
    if (epoll_ctl(poller, op, side->fd, &event)) die("epoll_ctl");
}

/* A side is read only while the other can take it, and polled for room only while bytes wait. */
static void rearm(struct side *side) {
    uint32_t events = 0;
    if (!side->peer->held) events |= EPOLLIN;
    if (side->held) events |= EPOLLOUT;
    arm(side, events, EPOLL_CTL_MOD);
}

static void close_pair(struct side *side) {
    if (side->closed) return;
    close(side->fd);
    close(side->peer->fd);
    free(side->held);
    free(side->peer->held);
    side->held = side->peer->held = NULL;
    side->closed = side->peer->closed = 1;
    struct side *pair = side < side->peer ? side : side->peer;
    pair->held = (uint8_t *)graveyard;
    graveyard = pair;
}

static void on_readable(struct side *side) {
    struct side *to = side->peer;
    ssize_t n = recv(side->fd, shared, BUFFER, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { close_pair(side); return; }
    ssize_t sent = send(to->fd, shared, (size_t)n, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) { close_pair(side); return; }
    if (sent < 0) sent = 0;
    if (sent == n) return;
    to->held_len = (size_t)(n - sent);
    to->held_at = 0;
    to->held = must_alloc(to->held_len);
    memcpy(to->held, shared + sent, to->held_len);
    rearm(to);
    rearm(side);
}

static void on_writable(struct side *side) {
    ssize_t sent = send(side->fd, side->held + side->held_at, side->held_len - side->held_at, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN) close_pair(side);
        return;
    }
    side->held_at += (size_t)sent;
    if (side->held_at < side->held_len) return;
    free(side->held);
    side->held = NULL;
    rearm(side);
    rearm(side->peer);
}

static void on_accept(int listener, int upstream_port) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    int up = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = loopback(upstream_port);
    if (up < 0 || connect(up, (struct sockaddr *)&address, sizeof address)) { close(fd); close(up); return; }
    fcntl(up, F_SETFL, O_NONBLOCK);
    set_nodelay(fd);
    set_nodelay(up);
    struct side *pair = calloc(2, sizeof *pair);
    if (!pair) die("calloc");
    pair[0].fd = fd;
    pair[1].fd = up;
    pair[0].peer = &pair[1];
    pair[1].peer = &pair[0];
    arm(&pair[0], EPOLLIN, EPOLL_CTL_ADD);
    arm(&pair[1], EPOLLIN, EPOLL_CTL_ADD);
}

int main(int argc, char **argv) {
    if (argc != 3) { fprintf(stderr, "usage: relay LISTEN_PORT UPSTREAM_PORT\n"); return 2; }
    int listener = listen_on(atoi(argv[1])), upstream_port = atoi(argv[2]);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, ready[256];
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event)) die("epoll_ctl");
    for (;;) {
        int n = epoll_wait(poller, ready, 256, -1);
        for (int i = 0; i < n; i++) {
            struct side *side = ready[i].data.ptr;
            if (!side) { on_accept(listener, upstream_port); continue; }
            if (!side->closed && ready[i].events & EPOLLOUT && side->held) on_writable(side);
            if (!side->closed && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !side->peer->held) on_readable(side);
        }
        while (graveyard) {
            struct side *pair = graveyard;
            graveyard = (struct side *)pair->held;
            free(pair);
        }
    }
}
